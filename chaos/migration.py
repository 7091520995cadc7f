"""The migration of a run: a command that is killed, gone on with or aborted, and given again."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from timeoutmgr.cli.exits import Exit
from timeoutmgr.testing.chaos.incidents import Incident
from timeoutmgr.testing.chaos.plan import FaultKind
from timeoutmgr.testing.chaos.troupe import Part

logger = logging.getLogger(__name__)

ABORTED: Final = 0.25
"""The share of interrupted migrations that are aborted."""
BETWEEN: Final = 0.1
"""Seconds between two lives."""
WHERE: Final = ("--to", "native")
HOW: Final = ("--safety-window", "1s", "--batch", "10")
"""Small batches, so that several are done in a life; what is due within a second stays."""


@dataclass(slots=True, kw_only=True)
class Migration(Part):
    """``timeoutmgr migrate`` of the endpoint *app*, one command after the other.

    Each life is one command: mostly ``run``, which begins a migration or goes on with the open
    one, and sometimes ``abort`` after an interruption. Once it is to finish, it only goes on until
    a ``run`` has come to its end.
    """

    app: str
    seed: int
    _chance: Random = field(init=False)
    _command: str = field(init=False, default="run")
    _is_finishing: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Have the seed settle which lives abort."""
        self._chance = Random(f"{self.seed} migration")

    def start(self) -> None:
        """Start its next life."""
        more = HOW if self._command == "run" else ()
        self.arguments = ["--app", self.app, "migrate", self._command, *WHERE, *more]
        Part.start(self)

    def kill(self) -> list[Incident]:
        """Kill it as a crash would, and have the next life go on or abort; return what befell."""
        if self.code is not None:
            return []
        self._command = self._next(None)
        return [
            replace(one, kind=FaultKind.KILL_MIGRATION) if one.kind is FaultKind.KILL else one
            for one in Part.kill(self)
        ]

    def tend(self) -> list[Incident]:
        """Start its next life when one has ended."""
        if self.is_finished or self.code is None:
            return []
        if self._next_life is None:
            logger.info("%s (%s) ended with code %s", self.life, self._command, self.code)
            self._next_life = time.monotonic() + BETWEEN
        elif time.monotonic() >= self._next_life:
            self._command = self._next(self.code)
            self.start()
        return []

    def finish(self) -> None:
        """Begin nothing more once a run has come to its end."""
        self._is_finishing = True

    @property
    def is_finished(self) -> bool:
        """Whether it was to finish, and its last run has come to its end."""
        return self._is_finishing and self._command == "run" and self.code == Exit.OK

    def _next(self, code: int | None) -> str:
        # Refused: the open one is being aborted, and that has to be finished first.
        if self._command == "run" and code == Exit.CONFIGURATION:
            return "abort"
        if self._is_finishing or code == Exit.OK:
            return "run"
        return "abort" if self._chance.random() < ABORTED else "run"
