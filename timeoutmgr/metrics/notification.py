"""Notifications to systemd, for a unit of ``Type=notify``; nothing is sent without a socket."""

import logging
import socket
from collections.abc import Mapping
from typing import Final, Self

from timeoutmgr.message.redaction import on_one_line

logger = logging.getLogger(__name__)

READY: Final = "READY=1"
WATCHDOG: Final = "WATCHDOG=1"
STOPPING: Final = "STOPPING=1"


class ServiceManager:
    """The service manager behind a datagram socket at *address*."""

    def __init__(self, address: str) -> None:
        # An abstract address begins with a zero byte, which the variable spells "@".
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._failed = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """Return the service manager that *environment* names, or None."""
        address = environment.get("NOTIFY_SOCKET")
        return cls(address) if address else None

    def notify(self, state: str) -> None:
        """Send *state*; an unavailable service manager must not stop an endpoint."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
                line.settimeout(1.0)
                line.sendto(state.encode(), self._address)
        except OSError as error:
            if not self._failed:
                logger.warning(
                    "process could not notify the service manager of %s: %s",
                    state,
                    on_one_line(error),
                    extra={"event": "not_notified"},
                )
            self._failed = True
