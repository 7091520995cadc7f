"""Who takes part in a migration."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Clock
from timeoutmgr.migration.ports import Ledger, Source, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Source, target and ledger of one endpoint; *runner* names the process that works.

    *pause* waits so many seconds; *clock* is this host's.
    """

    source: Source
    target: Target
    ledger: Ledger
    runner: str
    pause: Callable[[float], object] = time.sleep
    clock: Clock = field(default_factory=SystemClock)

    def close(self) -> None:
        """Say that this process works no more, and let go of all."""
        self.ledger.give_up(self.runner)
        self.source.close()
        self.target.close()
