"""Rounds of the due poller's step until nothing is due; a ``Poller`` calls them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from timeoutmgr.contracts import TransportSession
from timeoutmgr.message.instants import Micros
from timeoutmgr.sender.sender import SessionPool

from .due import DispatchDue, Round

_LOOK_AGAIN: Final = 1_000_000
"""Microseconds after which to look again at what is due and in other hands."""


@dataclass(slots=True)
class _Drain:
    """What the lanes of one drain share."""

    over: bool = False
    dealt_with: int = 0
    pause: float = 0.0
    errors: list[Exception] = field(default_factory=list)

    def add(self, done: Round) -> None:
        self.dealt_with += done.dealt_with
        self.pause = max(self.pause, done.pause)
        self.over |= bool(done.pause) or not done.full


class DueRounds:
    """Rounds of the step until nothing is due; with *lanes* 2, fetching overlaps with sending.

    The second lane is a thread that lives as long as there is more due than one batch.
    """

    def __init__(self, step: DispatchDue, *, sessions: SessionPool, lanes: int) -> None:
        self._stopping: Callable[[], bool] = lambda: False
        self._step = step
        self._batches = step.batches
        self._sessions = sessions
        self._lanes = lanes

    lead: Final = 0

    def stop_when(self, stopping: Callable[[], bool]) -> None:
        """Return early from now on where *stopping* says so."""
        self._stopping = stopping

    def now(self) -> Micros:
        """Return the time of the store's clock."""
        return self._batches.now()

    def notify_stored(self, due: Micros) -> None:
        """Hear that a message of *due* was stored, and is committed."""
        self._batches.notify_stored(due)

    def __call__(self, session: TransportSession) -> Micros | None:
        """Deal with all that is due; return the store's instant of the next look, None for none.

        Raises StorageUnavailable where the store cannot be used.
        """
        while not self._stopping():
            first = self._batches.store.next()
            if first is None or first > self.now():
                return first
            drain = self._drained(session)
            self._step.telemetry.count("delayed_fetched", drain.dealt_with)
            if drain.pause:
                return self.now() + round(drain.pause * 1_000_000)
            if not drain.dealt_with:
                return self.now() + _LOOK_AGAIN
        return None

    def _drained(self, session: TransportSession) -> _Drain:
        drain = _Drain()
        helper: threading.Thread | None = None
        try:
            while not (drain.over or self._stopping()):
                drain.add(self._step(session))
                if helper is None and self._lanes > 1 and not drain.over:
                    helper = threading.Thread(
                        target=self._help, args=(drain,), name="timeoutmgr-due-2", daemon=True
                    )
                    helper.start()
        finally:
            drain.over = True
            if helper is not None:
                helper.join()
        if drain.errors:
            raise drain.errors[0]
        return drain

    def _help(self, drain: _Drain) -> None:
        try:
            with self._sessions.session() as session:
                while not (drain.over or self._stopping()):
                    drain.add(self._step(session))
        except Exception as error:  # the first lane raises it
            drain.errors.append(error)
            drain.over = True
