"""Carries the plan out: each fault at its time, to the process that it picks."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from timeoutmgr.instants import Micros
from timeoutmgr.testing.chaos.connections import Cutter
from timeoutmgr.testing.chaos.incidents import SERVERS, Incident
from timeoutmgr.testing.chaos.plan import Fault, FaultKind
from timeoutmgr.testing.chaos.processes import ChaosFailed
from timeoutmgr.testing.chaos.stage import AWAY
from timeoutmgr.testing.chaos.troupe import Part, now

logger = logging.getLogger(__name__)

Restart: TypeAlias = Callable[[], object]
"""Takes a server down and brings it back; returns when it answers again."""

PATIENCE: Final = 120.0
"""Seconds that a restart of a server may take."""


CUTS: Final = frozenset({FaultKind.CUT_STORE, FaultKind.CUT_BROKER})
LOST_REPLIES: Final = frozenset({FaultKind.LOSE_COMMIT, FaultKind.LOSE_CONFIRM})


@dataclass(slots=True, kw_only=True)
class _Trap:
    """An answer that is to be lost; none was when it was *looked* at last, but *lost* before."""

    kind: FaultKind
    victim: Part
    lost: int
    looked: Micros


class Trouble:
    """What befalls *victims*, and what befell them; *connected* are all whose lines can be cut.

    The *migration* has faults of its own.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        victims: Sequence[Part],
        connected: Sequence[Part],
        cutters: Mapping[FaultKind, Cutter],
        restarts: Mapping[FaultKind, Restart],
        migration: Part | None = None,
    ) -> None:
        self._faults = deque(faults)
        self._victims = victims
        self._migration = migration
        self._tended = [*victims, *([] if migration is None else [migration])]
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
        """Whether nothing more happens."""
        return not self._faults and not self._to_restart and self._restarting is None

    def step(self, elapsed: float) -> None:
        """Do what is due *elapsed* seconds after the begin, and look after the processes."""
        if self._failure is not None:
            raise ChaosFailed(f"a server could not be restarted: {self._failure}") from (
                self._failure
            )
        self._go_on_restarting()
        self._look_at_traps()  # before anybody gets another life
        while self._faults and self._faults[0].at <= elapsed:
            self._happen(self._faults.popleft())
        for one in self._tended:
            self.incidents += one.tend()

    def calm(self) -> None:
        """End all pauses, and wait for a server that is being restarted."""
        for part in self._tended:
            self.incidents += part.resume()
        for one in self._cutters.values():
            one.heal()
        self._look_at_traps()
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

    def _cut(self, kind: FaultKind, victim: Part) -> None:
        if victim.code is not None or self._restarting is not None:
            return
        begin = now()
        try:
            cut = self._cutters[kind].cut(victim.name)
        except AWAY as error:
            logger.info("could not cut connections of %s: %s", victim.life, error)
            cut = 0
        if cut:
            self.incidents.append(
                Incident(kind=kind, process=victim.life, begin=begin, end=now(), connections=cut)
            )

    def _set_a_trap(self, kind: FaultKind, victim: Part) -> None:
        if any(trap.kind is kind and trap.victim is victim for trap in self._traps):
            return
        lost = self._cutters[kind].lost(victim.name)
        self._traps.append(_Trap(kind=kind, victim=victim, lost=lost, looked=now()))
        self._cutters[kind].lose_reply(victim.name)

    def _look_at_traps(self) -> None:
        """Tell of the answers that were lost: within the moment between two looks."""
        for trap in list(self._traps):
            looked = now()
            if self._cutters[trap.kind].lost(trap.victim.name) == trap.lost:
                trap.looked = looked
                continue
            self._traps.remove(trap)
            self.incidents.append(
                Incident(kind=trap.kind, process=trap.victim.life, begin=trap.looked, end=now())
            )

    def _restart(self, kind: FaultKind) -> None:
        """Restart a server, while other faults go on; one at a time.

        One that comes while another restarts has its turn then; no kind has two turns before it.
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
        except Exception as error:  # told by the next step, in the thread that owns the run
            self._failure = error
        self.incidents.append(Incident(kind=kind, process=SERVERS, begin=begin, end=now()))
        logger.info("%s took %.1f s", kind.value, time.monotonic() - started)
