"""Parts of the tests of the testing kit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from timeoutmgr import EndpointConfiguration, HandlerContext
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import TimeoutKit

START = datetime(2030, 1, 1, tzinfo=UTC)


class Shop:
    """A configuration, and the messages that its handler of ``Note`` has seen, with their time."""

    def __init__(self, transport: str | None = None, persistence: str | None = None) -> None:
        self.config = EndpointConfiguration("sales")
        self.config.enable_feature(TimeoutManager())
        if transport is not None:
            self.config.use_transport(transport)
        if persistence is not None:
            self.config.use_persistence(persistence)
        self.config.add_handler("Note", self._note)
        self.noted: list[tuple[Any, datetime]] = []
        self.kit: TimeoutKit

    def open(self, **options: Any) -> TimeoutKit:
        """Return a kit, whose clock begins at START."""
        self.kit = TimeoutKit(self.config, **{"start": START, **options})
        return self.kit

    @property
    def bodies(self) -> list[Any]:
        """The bodies of the noted messages, in their order."""
        return [body for body, _at in self.noted]

    def _note(self, body: object, _context: HandlerContext) -> None:
        self.noted.append((body, self.kit.now))
