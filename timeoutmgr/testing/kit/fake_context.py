"""A handler's context without an endpoint, for a test that calls the handler directly."""

import weakref
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from timeoutmgr.contracts import TransactionMode
from timeoutmgr.endpoint.handled_classes import read_typed
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.message import headers
from timeoutmgr.message.classes import NO_BODY, TypedMessage, class_of, type_and_body
from timeoutmgr.message.ids import random_id
from timeoutmgr.message.message import Message, Outgoing, Received
from timeoutmgr.message.routes import TIMEOUTS, Clearing, ClearOrder, timeout_id, to_timeout_manager
from timeoutmgr.message.validation import Limits, decode_body, encode_body
from timeoutmgr.sender.composer import Composer
from timeoutmgr.testing.kit.clock import KitClock
from timeoutmgr.testing.kit.database import KitDatabase
from timeoutmgr.testing.kit.messages import ObservedMessage, observed
from timeoutmgr.testing.kit.transport import KitTransport
from timeoutmgr.transport.work import Work

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

ENDPOINT: Final = "testing"
"""The endpoint to which a fake context belongs."""


class FakeMessage(TypedDict, total=False):
    """Properties of the message of a fake context."""

    saga_id: str
    reply_to: str
    message_id: str
    headers: Mapping[str, str]
    delivery_count: int


class FakeContext(HandlerContext):
    """The context of a message of *message_type* with *body*; it records the handler's actions.

    ::

        context = FakeContext("OrderPlaced", {"order": 7}, saga_id="order-7")
        remind(context.body, context)
        assert [message.type for message in context.sent] == ["PaymentOverdue"]

    A typed message stands for both type and body. Sends are checked as by an endpoint, but go
    nowhere. The handler gets *session* as ``context.session``, by default a session on an empty
    SQLite database in memory.
    """

    def __init__(
        self,
        message_type: str | TypedMessage,
        body: object = None,
        *,
        session: "Session | None" = None,
        **message: Unpack[FakeMessage],
    ) -> None:
        if unknown := message.keys() - FakeMessage.__annotations__.keys():
            known = ", ".join(FakeMessage.__annotations__)
            raise TypeError(f"a FakeContext takes {known} and session, got {', '.join(unknown)}")
        self._class = None if isinstance(message_type, str) else class_of(message_type)
        if not isinstance(message_type, str):
            message_type, body = type_and_body(message_type, NO_BODY if body is None else body)
        clock = KitClock()
        transport = KitTransport(clock, KitDatabase())
        transport_session = transport.session()
        receiver = transport_session.receiver(ENDPOINT, prefetch=1)
        work = Work(transport_session, receiver, TransactionMode.SENDS_ATOMIC_WITH_RECEIVE)
        # Tests do not end the context: end its transaction with it, before its database.
        weakref.finalize(self, work.__exit__, None, None, None).atexit = False
        super().__init__(
            _received(message_type, body, message),
            message_type,
            _composer(clock),
            ENDPOINT,
            work,
            lambda _queues: None,
            raise_critical=lambda error, _exception: self.critical_errors.append(error),
        )
        self._given_session = session
        self.critical_errors: Final[list[str]] = []
        """The critical errors that the handler raised, in order."""

    @property
    def body(self) -> Any:
        """The body as the handler gets it: JSON is encoded and decoded, a typed message read."""
        if self._class is not None:
            return read_typed(self.message, self._class)
        return decode_body(self.message.body, self.message.content_type)

    @property
    def session(self) -> "Session":
        """The given session, otherwise a session on SQLite in memory."""
        return super().session if self._given_session is None else self._given_session

    @property
    def sent(self) -> list[ObservedMessage]:
        """The messages that the handler sent, in order."""
        return [
            observed(one.message, one.destination)
            for one in self._outgoing
            if isinstance(one, Outgoing)
        ]

    @property
    def cleared(self) -> list[str]:
        """The sagas whose timeouts the handler cleared, in order."""
        return [one.saga_id for one in self._outgoing if isinstance(one, ClearOrder)]


def _received(message_type: str, body: object, given: FakeMessage) -> Received:
    content, content_type = encode_body(body)
    message_id = given.get("message_id") or random_id()
    named = {headers.SAGA_ID: given.get("saga_id"), headers.REPLY_TO: given.get("reply_to")}
    message = Message(
        id=message_id,
        headers={
            headers.MESSAGE_ID: message_id,
            headers.ENCLOSED_MESSAGE_TYPES: message_type,
            **{name: value for name, value in named.items() if value is not None},
            **given.get("headers", {}),
        },
        body=content,
        content_type=content_type,
    )
    return Received(
        message=message,
        queue=ENDPOINT,
        tag=message_id,
        delivery_count=given.get("delivery_count", 0),
    )


def _composer(clock: KitClock) -> Composer:
    address = ENDPOINT + TIMEOUTS
    delays = partial(to_timeout_manager, address=address)
    return Composer(
        endpoint=ENDPOINT,
        clearing=Clearing(endpoint=ENDPOINT, address=address),
        reply_to=ENDPOINT,
        limits=Limits(),
        clock=clock,
        new_id=random_id,
        timeout_id_of=lambda message_id: timeout_id(ENDPOINT, message_id),
        delays=delays,
        cancellable_delays=delays,
        remembering_delays=delays,
    )
