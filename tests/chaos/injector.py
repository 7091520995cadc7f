"""A plan of faults that one process has to live with."""

from __future__ import annotations

from collections.abc import Callable

from chaos import Fault, FaultKind
from chaos.connections import Cutter
from chaos.fault_injector import FaultInjector
from chaos.supervisor import SupervisedProcess


def injector(
    *faults: Fault,
    process: SupervisedProcess,
    restart: Callable[[], None] | None = None,
    store: Cutter | None = None,
) -> FaultInjector:
    restarts = {} if restart is None else {FaultKind.RESTART_STORE: restart}
    cutters = {} if store is None else {FaultKind.LOSE_COMMIT: store}
    return FaultInjector(faults, [process], [process], cutters, restarts)
