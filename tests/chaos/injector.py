"""A plan of faults that one process has to live with."""

from __future__ import annotations

from collections.abc import Callable

from timeoutmgr.testing.chaos import Fault, FaultKind
from timeoutmgr.testing.chaos.connections import Cutter
from timeoutmgr.testing.chaos.trouble import Trouble
from timeoutmgr.testing.chaos.troupe import Part


def trouble(
    *faults: Fault,
    part: Part,
    restart: Callable[[], None] | None = None,
    store: Cutter | None = None,
) -> Trouble:
    restarts = {} if restart is None else {FaultKind.RESTART_STORE: restart}
    cutters = {} if store is None else {FaultKind.LOSE_COMMIT: store}
    return Trouble(faults, [part], [part], cutters, restarts)
