"""An endpoint that is created at its first use, once per process; stores frameworks' messages."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import RLock
from typing import Final, Generic, TypeVar

from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.resilience.after_fork import begin_anew_after_fork
from timeoutmgr.sender.bulk import BulkInterrupted, OnSent
from timeoutmgr.sender.composer import ToSend

AnyEndpoint = TypeVar("AnyEndpoint", bound=Endpoint)
_NO_PLACE: Final = object()


class ProcessEndpoint(Generic[AnyEndpoint]):
    """The endpoint that *make* returns at the first use. Safe for many threads.

    A forked process continues with its parent's endpoint, with new connections. *place* returns
    where a new endpoint would have its messages; as soon as that changes, the endpoint is closed
    and the next use creates another endpoint.
    """

    def __init__(
        self, make: Callable[[], AnyEndpoint], *, place: Callable[[], object] = lambda: None
    ) -> None:
        self._make: Final = make
        self._place: Final = place
        self._lock = RLock()
        self._made: AnyEndpoint | None = None
        self._made_at: object = None
        begin_anew_after_fork(self)

    def __call__(self) -> AnyEndpoint:
        """Return the endpoint. Raises ConfigurationError."""
        self.forget_unless_at(self._place())
        with self._lock:
            if self._made is None:
                self._made_at = self._place()
                self._made = self._make()
            return self._made

    def after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have acquired."""
        self._lock = RLock()

    def forget(self) -> None:
        """Close the endpoint; the next use creates another endpoint."""
        self.forget_unless_at(_NO_PLACE)

    def forget_unless_at(self, place: object) -> None:
        """Close the endpoint unless its messages are at *place*."""
        if self._made is None:  # a thread that creates the endpoint holds the lock for long
            return
        with self._lock:
            if self._made is None or self._made_at == place:
                return
            made, self._made = self._made, None
        made.close()  # without the lock: closing waits for handlers, which may use the endpoint


def installed(configuration: EndpointConfiguration) -> Endpoint:
    """Return the endpoint of *configuration*, with its queues and tables."""
    endpoint = Endpoint(configuration)
    endpoint.install()
    return endpoint


def check(endpoint: Endpoint, message: ToSend) -> None:
    """Raise the error that storing *message* would raise; store nothing.

    Middleware sees the message once, when it is stored.
    """
    composer = replace(endpoint.parts.composer, middleware=())
    composer.compose(
        message.destination, message.message_type, message.body, message.options, stored=True
    )


def store(endpoint: Endpoint, messages: Sequence[ToSend], on_sent: OnSent | None = None) -> None:
    """Store *messages* of a framework, whose programs do not know our bulk errors.

    Raises the error that ended the bulk, as a single send does: also that of a task's time limit.
    """
    try:
        endpoint.store_many(messages, on_sent=on_sent)
    except BulkInterrupted as error:
        raise error.__cause__ or error from None
