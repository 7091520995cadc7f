"""Carries the plan out: each fault at its time, to the process that it picks."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from timeoutmgr.instants import Micros
from timeoutmgr.testing.chaos.connections import Cutter
from timeoutmgr.testing.chaos.incidents import SERVERS, Incident
from timeoutmgr.testing.chaos.plan import Fault, FaultKind
from timeoutmgr.testing.chaos.stage import AWAY
from timeoutmgr.testing.chaos.troupe import ChaosFailed, Part, now

logger = logging.getLogger(__name__)

Restart: TypeAlias = Callable[[], object]
"""Takes a server down and brings it back; returns when it answers again."""

PATIENCE: Final = 120.0
"""Seconds that a restart of a server may take."""


class Trouble:
    """What befalls *victims*, and what befell them; *connected* are all whose lines can be cut."""

    def __init__(
        self,
        faults: Sequence[Fault],
        victims: Sequence[Part],
        connected: Sequence[Part],
        cutters: Mapping[FaultKind, Cutter],
        restarts: Mapping[FaultKind, Restart],
    ) -> None:
        self._faults = deque(faults)
        self._victims = victims
        self._connected = connected
        self._cutters = cutters
        self._restarts = restarts
        self._restarting: threading.Thread | None = None
        self._failure: Exception | None = None
        self.incidents: list[Incident] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens."""
        return not self._faults and self._restarting is None

    def step(self, elapsed: float) -> None:
        """Do what is due *elapsed* seconds after the begin, and look after the processes."""
        if self._failure is not None:
            raise ChaosFailed(f"a server could not be restarted: {self._failure}") from (
                self._failure
            )
        if self._restarting is not None and not self._restarting.is_alive():
            self._restarting = None
        while self._faults and self._faults[0].at <= elapsed:
            self._happen(self._faults.popleft())
        for victim in self._victims:
            self.incidents += victim.tend()

    def calm(self) -> None:
        """End all pauses, and wait for a server that is being restarted."""
        for victim in self._victims:
            self.incidents += victim.resume()
        if self._restarting is not None:
            self._restarting.join(PATIENCE)

    def _happen(self, fault: Fault) -> None:
        is_cut = fault.kind in (FaultKind.CUT_STORE, FaultKind.CUT_BROKER)
        possible = self._connected if is_cut else self._victims
        victim = possible[int(fault.choice * len(possible))]
        match fault.kind:
            case FaultKind.KILL:
                self.incidents += victim.kill()
            case FaultKind.PAUSE:
                victim.pause(fault.length)
            case FaultKind.CUT_STORE | FaultKind.CUT_BROKER:
                self._cut(fault.kind, victim)
            case FaultKind.RESTART_STORE | FaultKind.RESTART_BROKER:
                self._restart(fault.kind)

    def _cut(self, kind: FaultKind, victim: Part) -> None:
        if victim.code is not None or self._restarting is not None:
            return
        begin = now()
        try:
            cut = self._cutters[kind].cut(victim.name, victim.pid)
        except AWAY as error:
            logger.info("could not cut connections of %s: %s", victim.life, error)
            cut = 0
        if cut:
            self.incidents.append(
                Incident(kind=kind, process=victim.life, begin=begin, end=now(), connections=cut)
            )

    def _restart(self, kind: FaultKind) -> None:
        """Restart a server, while other faults go on; one at a time."""
        if self._restarting is not None:
            return
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
