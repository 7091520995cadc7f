"""Detection of senders whose clock is ahead of the store's, for counters, log and doctor.

A due time by such a clock is late by the difference. A sender whose clock is behind cannot be
detected: its message looks like a message that waited.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from timeoutmgr.contracts import Clock, Timeout
from timeoutmgr.contracts.reports import SENDERS_AHEAD
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import ThreadSafe
from timeoutmgr.resilience.critical import CriticalErrors
from timeoutmgr.telemetry import Telemetry

logger = logging.getLogger(__name__)

# --- the critical error of a database clock and a host clock that differ too much -------------


def report_clock_offset(critical: CriticalErrors, seconds: float) -> None:
    """Raise the critical error: the clocks differ by *seconds*."""
    critical.raise_error(
        f"The database's clock differs from this host's by {seconds:.0f} s: due times that are "
        "made here are wrong by as much. Set the clocks.",
        RuntimeError(f"clock offset {seconds:.0f} s"),
    )


_AHEAD: Final[Micros] = 30_000_000
_LOG_EVERY: Final = 60.0
_REPORTED_FOR: Final = 3600.0
"""Seconds for which the report names a sender after its last message with a future TimeSent."""
_SENDERS: Final = 20
"""Maximum number of remembered senders; names come from messages, and so from strangers."""
_NAME: Final = 80


@dataclass(slots=True)
class _Sender:
    ahead: float
    seen: float
    logged: float


class SenderClocks(ThreadSafe):
    """Compares each message's TimeSent with the store's clock. Safe for many threads.

    *offset* returns by how much the store's clock is ahead of *clock*, None before it is measured.
    """

    def __init__(
        self, offset: Callable[[], Micros | None], clock: Clock, telemetry: Telemetry
    ) -> None:
        self._offset = offset
        self._clock = clock
        self._telemetry = telemetry
        super().__init__()

    def after_fork(self) -> None:
        """Reset: a thread of the parent may have locked the lock."""
        super().after_fork()
        self._senders: dict[str, _Sender] = {}

    def compare(self, timeouts: Iterable[Timeout]) -> None:
        """Count and log the senders of *timeouts* whose clock is more than 30 s ahead."""
        offset = self._offset()
        if offset is None:
            return
        now = self._clock.now() + offset
        for timeout in timeouts:
            if timeout.created - now > _AHEAD:
                self._telemetry.count("senders_ahead")
                self._note(timeout, (timeout.created - now) / 1_000_000)

    def report(self) -> Mapping[str, str]:
        """Return the senders of the last hour, for the heartbeat of this process."""
        since = self._clock.monotonic() - _REPORTED_FOR
        with self._lock:
            ahead = {name: each.ahead for name, each in self._senders.items() if each.seen > since}
        if not ahead:
            return {}
        return {SENDERS_AHEAD: ", ".join(f"{name} by {ahead[name]:.0f} s" for name in ahead)}

    def _note(self, timeout: Timeout, ahead: float) -> None:
        given = timeout.message.headers.get(headers.ORIGINATING_ENDPOINT, "(not named)")
        name, now = on_one_line(given[:_NAME])[:_NAME], self._clock.monotonic()
        with self._lock:
            known = self._senders.pop(name, None)
            if known is None and len(self._senders) >= _SENDERS:
                del self._senders[next(iter(self._senders))]  # not seen for longest
            is_logged = known is not None and now - known.logged < _LOG_EVERY
            logged = known.logged if known is not None and is_logged else now
            self._senders[name] = _Sender(ahead, now, logged)
        if not is_logged:
            logger.warning(
                "sender %s has a clock %.0f s ahead of the store's (message %s): a relative delay "
                "that it resolved itself ends as much too late; set that clock",
                name,
                ahead,
                on_one_line(timeout.message.id[:_NAME]),
                extra={"event": "sender_ahead", "message_id": timeout.message.id},
            )
