"""Log of the channels of control messages that leave no row: at most one line a minute.

A wake changes no timeout: it asks for a poll. A final acknowledgement whose copy is deleted or
unknown changes nothing either. So no history records them. A stranger can send them without a
pause: so a line names only the newest message, and the number of all.
"""

import logging
from typing import Final

from timeoutmgr.message import routes
from timeoutmgr.message.message import Received
from timeoutmgr.resilience.after_fork import ThreadSafe

logger = logging.getLogger(__name__)

EVERY: Final = 60.0
"""Seconds between two lines."""


class ChannelLog(ThreadSafe):
    """Logs control messages of one kind; *what* is its plural. Thread-safe."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what
        self._unlogged = 0
        self._next: float | None = None

    def note(self, newest: Received, now: float, count: int = 1) -> None:
        """Record *count* messages, including *newest*, that came at *now* by a monotonic clock."""
        with self._lock:
            self._unlogged += count
            if self._next is not None and now < self._next:
                return
            self._next = now + EVERY
            count, self._unlogged = self._unlogged, 0
        channel = routes.of_message(newest)
        fields = {"event": "control_messages_received", "message_id": newest.message.id[:80]}
        logger.info(
            "satellite received %d %s; the newest by %s", count, self._what, channel, extra=fields
        )
