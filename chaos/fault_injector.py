"""Carries out the plan: injects each fault at its time into the process that it picks."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from chaos.connections import Cutter
from chaos.incidents import SERVERS, Incident
from chaos.plan import Fault, FaultKind
from chaos.processes import ChaosFailed
from chaos.resources import AWAY_ERRORS
from chaos.supervisor import SupervisedProcess, now
from timeoutmgr.message.instants import Micros

logger = logging.getLogger(__name__)

Restart: TypeAlias = Callable[[], object]
"""Restarts a server; returns when it answers again."""

PATIENCE: Final = 120.0
"""Seconds that a restart of a server may take."""


CUTS: Final = frozenset({FaultKind.CUT_STORE, FaultKind.CUT_BROKER})
LOST_REPLIES: Final = frozenset({FaultKind.LOSE_COMMIT, FaultKind.LOSE_CONFIRM})


@dataclass(slots=True, kw_only=True)
class _Trap:
    """An answer to lose: at *checked* the cutter of *victim* had lost *lost* answers."""

    kind: FaultKind
    victim: SupervisedProcess
    lost: int
    checked: Micros


class FaultInjector:
    """Injects faults into *victims*, and cuts connections of *connected*; records incidents.

    The *migration* has its own faults.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        victims: Sequence[SupervisedProcess],
        connected: Sequence[SupervisedProcess],
        cutters: Mapping[FaultKind, Cutter],
        restarts: Mapping[FaultKind, Restart],
        migration: SupervisedProcess | None = None,
    ) -> None:
        self._faults = deque(faults)
        self._victims = victims
        self._migration = migration
        self._supervised = [*victims, *([] if migration is None else [migration])]
        self._connected = connected
        self._cutters = cutters
        self._restarts = restarts
        self._restarting: threading.Thread | None = None
        self._to_restart: deque[FaultKind] = deque()
        self._failure: Exception | None = None
        self._traps: list[_Trap] = []
        self.incidents: list[Incident] = []

    @property
    def is_over(self) -> bool:
        """Whether no more faults follow."""
        return not self._faults and not self._to_restart and self._restarting is None

    def step(self, elapsed: float) -> None:
        """Inject faults due *elapsed* seconds after the begin; supervise the processes."""
        if self._failure is not None:
            raise ChaosFailed(f"a server could not be restarted: {self._failure}") from (
                self._failure
            )
        self._go_on_restarting()
        self._check_traps()  # before a process starts again
        while self._faults and self._faults[0].at <= elapsed:
            self._happen(self._faults.popleft())
        for one in self._supervised:
            self.incidents += one.supervise()

    def calm(self) -> None:
        """End all pauses, and wait for a server that is being restarted."""
        for process in self._supervised:
            self.incidents += process.resume()
        for one in self._cutters.values():
            one.heal()
        self._check_traps()
        self._traps.clear()
        if self._restarting is not None:
            self._restarting.join(PATIENCE)

    def _happen(self, fault: Fault) -> None:
        possible = self._connected if fault.kind in CUTS | LOST_REPLIES else self._victims
        victim = possible[int(fault.choice * len(possible))]
        match fault.kind:
            case FaultKind.KILL:
                self.incidents += victim.kill()
            case FaultKind.KILL_MIGRATION:
                self.incidents += [] if self._migration is None else self._migration.kill()
            case FaultKind.PAUSE:
                victim.pause(fault.length)
            case FaultKind.CUT_STORE | FaultKind.CUT_BROKER:
                self._cut(fault.kind, victim)
            case FaultKind.LOSE_COMMIT | FaultKind.LOSE_CONFIRM:
                self._set_a_trap(fault.kind, victim)
            case FaultKind.RESTART_STORE | FaultKind.RESTART_BROKER:
                self._restart(fault.kind)

    def _cut(self, kind: FaultKind, victim: SupervisedProcess) -> None:
        if victim.code is not None or self._restarting is not None:
            return
        begin = now()
        try:
            cut = self._cutters[kind].cut(victim.name)
        except AWAY_ERRORS as error:
            logger.info("could not cut connections of %s: %s", victim.incarnation, error)
            cut = 0
        if cut:
            self.incidents.append(
                Incident(
                    kind=kind, process=victim.incarnation, begin=begin, end=now(), connections=cut
                )
            )

    def _set_a_trap(self, kind: FaultKind, victim: SupervisedProcess) -> None:
        if any(trap.kind is kind and trap.victim is victim for trap in self._traps):
            return
        lost = self._cutters[kind].lost(victim.name)
        self._traps.append(_Trap(kind=kind, victim=victim, lost=lost, checked=now()))
        self._cutters[kind].lose_reply(victim.name)

    def _check_traps(self) -> None:
        """Record lost answers as incidents between two checks."""
        for trap in list(self._traps):
            checked = now()
            if self._cutters[trap.kind].lost(trap.victim.name) == trap.lost:
                trap.checked = checked
                continue
            self._traps.remove(trap)
            self.incidents.append(
                Incident(
                    kind=trap.kind, process=trap.victim.incarnation, begin=trap.checked, end=now()
                )
            )

    def _restart(self, kind: FaultKind) -> None:
        """Restart a server while other faults go on; servers restart one after the other.

        A restart waits until the previous restart ends; each kind waits at most once.
        """
        if kind not in self._to_restart:
            self._to_restart.append(kind)
        self._go_on_restarting()

    def _go_on_restarting(self) -> None:
        if self._restarting is not None and not self._restarting.is_alive():
            self._restarting = None
        if self._restarting is None and self._failure is None and self._to_restart:
            kind = self._to_restart.popleft()
            self._restarting = threading.Thread(
                target=self._restarted, args=(kind, now()), name="restart", daemon=True
            )
            self._restarting.start()

    def _restarted(self, kind: FaultKind, begin: Micros) -> None:
        started = time.monotonic()
        try:
            self._restarts[kind]()
        except Exception as error:  # raised by the next step, in the thread that owns the run
            self._failure = error
        self.incidents.append(Incident(kind=kind, process=SERVERS, begin=begin, end=now()))
        logger.info("%s took %.1f s", kind.value, time.monotonic() - started)
