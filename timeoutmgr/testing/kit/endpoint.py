"""The endpoint of a testing kit: a program sends with it as with any other endpoint."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar, cast

from sqlalchemy import Connection

from timeoutmgr.contracts import RepeatKind
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.errors import CombinationRefused, InvalidMessage, Unsupported
from timeoutmgr.sender.composer import Composed, Sent, ToSend
from timeoutmgr.testing.kit.clock import KitClock
from timeoutmgr.testing.kit.commits import on_commit
from timeoutmgr.testing.kit.configuration import KitConfiguration
from timeoutmgr.testing.kit.transport import KitTransport
from timeoutmgr.testing.kit.worker import KitWorker

if TYPE_CHECKING:
    from timeoutmgr.sender.bulk import OnSent
    from timeoutmgr.sender.in_transaction import CallerSession

Answer = TypeVar("Answer")


class KitEndpoint(Endpoint):
    """An endpoint whose messages wait in its kit until the kit handles them.

    Starting, stopping, running or closing it does nothing. With ``session=`` a message is sent when
    the session commits; the kit does not check that the session's database is in the settings.
    """

    def __init__(self, config: KitConfiguration, transport: KitTransport, clock: KitClock) -> None:
        super().__init__(config)
        self._config = config
        self._transport = transport
        self._clock = clock
        self.worker = KitWorker(self._parts, transport, clock)
        self.sent_now: Callable[[], None] = lambda: None
        """Called after each message that waits for no commit."""

    @property
    def timeouts(self) -> Timeouts:
        """The pending timeouts of this endpoint."""
        if self._config.stores_elsewhere and self._parts.features.store is not None:
            raise Unsupported(
                "listing, cancelling or rescheduling here",
                "no timeout manager of this endpoint stores its delayed messages",
                "In a test use scheduled and assert_scheduled of the kit",
            )
        self.worker.store()
        return super().timeouts

    def start(self) -> None:
        """Do nothing: the kit handles messages in the test's thread."""

    def stop(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: a test may query the kit after its program has ended."""

    def run(self) -> None:
        """Return at once."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return at once; no thread runs."""
        return True

    def install(self, *, new_marker: bool = False) -> list[str]:
        """Create nothing; return the endpoint's queues."""
        return self._parts.queues

    def _send_named(self, message: ToSend, session: "CallerSession | None") -> Sent:
        if self._config.given.send_only and message.destination == self.name:
            raise InvalidMessage(f"endpoint {self.name!r} is send-only: it has no queue of its own")
        self._catch_up(message)
        if session is not None:
            return self._send_on_commit(message, session)
        return self._noted(super()._send_named(message, None))

    def send_many(self, messages: Iterable[ToSend], *, on_sent: "OnSent | None" = None) -> int:
        """Send many messages, like ``Endpoint.send_many``."""
        return self._noted(super().send_many(map(self._catch_up, messages), on_sent=on_sent))

    def store_many(self, messages: Iterable[ToSend], *, on_sent: "OnSent | None" = None) -> int:
        """Store many delayed messages, like ``Endpoint.store_many``."""
        return super().store_many(map(self._catch_up, messages), on_sent=on_sent)

    def _catch_up(self, message: ToSend) -> ToSend:
        # The endpoint refuses any other object in a bulk.
        if isinstance(message, ToSend) and message.options.deliver_at is not None:
            self._clock.catch_up()
        return message

    def _noted(self, sent: Answer) -> Answer:
        """Return *sent* once its messages are stored or, with *inline*, handled."""
        self.worker.store()
        self.sent_now()
        return sent

    def _send_on_commit(self, message: ToSend, session: "CallerSession") -> Sent:
        composed = self._parts.composer.compose(
            message.destination, message.message_type, message.body, message.options, stored=True
        )
        self._require_database(is_delayed=composed.due is not None)
        answered = composed.answered(self._examined(composed, session))
        if answered.repeat is not RepeatKind.CONFLICT:
            on_commit(session, lambda: self._transport.put(composed.outgoing))
        return answered.sent

    def _examined(self, composed: Composed, session: "CallerSession") -> RepeatKind | None:
        """Return the answer of the store, which production asks where it is in a database."""
        given, direct = self._config.given.persistence, self._parts.features.direct
        if not composed.may_repeat or composed.due is None or self._config.stores_elsewhere:
            return None
        if given is None or given.database is None or direct is None or direct.examine is None:
            return None
        self.worker.store()
        return direct.examine(composed.outgoing.message, cast(Connection, session))

    def _require_database(self, *, is_delayed: bool) -> None:
        """Raise CombinationRefused if the user's own parts have no database for ``session=``."""
        given = self._config.given
        stored = given.persistence.database if is_delayed and given.persistence else None
        if given.transport.database is None and stored is None:
            raise CombinationRefused(
                "session=",
                "neither the queues nor the timeouts of this endpoint live in a database",
                "Use the session's database for the SQL queue or the persistence, or send without "
                "session.",
            )
