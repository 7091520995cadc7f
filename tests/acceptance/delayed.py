"""An endpoint whose delayed messages rest in a delayed message store."""

from __future__ import annotations

from typing import Any, Final

from tests.acceptance.error_queue import ErrorQueue
from tests.acceptance.place import Place
from tests.support.waiting import eventually
from timeoutmgr import (
    DelayedDeliverySettings,
    Endpoint,
    EndpointConfiguration,
    RecoverabilitySettings,
)
from timeoutmgr.contracts import DelayedMessageStore
from timeoutmgr.message.routes import DELAYED
from timeoutmgr.persistence import SqlDelayedMessageStore
from timeoutmgr.testing import Inbox, RecordingTelemetry, configure


class DelayedParty:
    """As ``place.Party``, with a delayed message store in place of a timeout manager."""

    def __init__(
        self,
        place: Place,
        *,
        store: DelayedMessageStore | None = None,
        name: str | None = None,
        delayed: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.place: Final = place
        self.inbox: Final = Inbox()
        self.telemetry: Final = RecordingTelemetry()
        self.name: Final = name or place.name
        self.store: Final = store or SqlDelayedMessageStore(place.store_url)
        self.config: Final[EndpointConfiguration] = configure(
            self.name,
            transport=place.transport(),
            persistence=None,
            telemetry=self.telemetry,
            handler=None if settings.get("send_only") else self.inbox,
        )
        self.config.use_transport(
            place.transport(),
            delayed_delivery=DelayedDeliverySettings(self.store, **(delayed or {})),
        )
        self.config.transaction_mode = place.pair.mode
        self.config.recoverability = RecoverabilitySettings(immediate=1, delayed=0)
        if settings.pop("send_only", False):
            self.config.send_only()
        for setting, value in settings.items():
            assert hasattr(self.config, setting), setting
            setattr(self.config, setting, value)
        place._queues |= {self.name, self.config.error_queue, self.name + DELAYED}
        self._endpoint: Endpoint | None = None

    def start(self) -> DelayedParty:
        """Start the endpoint; it runs until the test ends."""
        self._endpoint = self.place.run(self.config)
        return self

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint; created, not started, at the first use if ``start`` was not called."""
        if self._endpoint is None:
            self._endpoint = self.place.made(self.config)
        return self._endpoint

    @property
    def errors(self) -> ErrorQueue:
        """A reader of the error queue."""
        return self.place.received(self.config.error_queue)

    def stored(self) -> int:
        """Return how many messages are stored."""
        assert isinstance(self.store, SqlDelayedMessageStore)
        return self.store.count()

    def wait_until_stored(self, count: int) -> None:
        """Return once *count* messages are stored."""
        eventually(lambda: self.stored() == count, f"{count} messages are stored")
