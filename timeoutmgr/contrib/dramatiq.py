"""dramatiq: delays and retries of a RabbitMQ broker are stored in a database.

``dramatiq.set_broker(DurableRabbitmqBroker(url=…, store=…))`` is the only change. Workers send due
messages.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from dramatiq import Middleware
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from pika import BasicProperties

from timeoutmgr import plugins
from timeoutmgr.contrib.process_endpoint import ProcessEndpoint, installed, store
from timeoutmgr.contrib.worker_dispatch import WorkerDispatch, log_not_started
from timeoutmgr.endpoint.configuration import EndpointConfiguration, transport_from_url
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.foreign import AMQP, Foreign, Route
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.sender.composer import SendOptions, Sent, ToSend

logger = logging.getLogger(__name__)

_NAMESPACE: Final = uuid.UUID("c6e1f7a4-8b53-5b9c-a0ad-6d6f5a1b7c10")
_RUN: Final = "timeoutmgr_run"
"""An option of each message: new for each send, except that dramatiq copies it into a retry."""


@dataclass(frozen=True, slots=True)
class _Handled:
    """The message that a thread handles, with its retries so far."""

    message_id: str
    retries: int
    has_ended: bool
    """Whether the actor has ended: after that, an error of a send reaches only a log."""

    def is_retried_by(self, message: Any) -> bool:
        """Return whether *message* is the retry that follows."""
        retries = message.options.get("retries") or 0
        return bool(message.message_id == self.message_id and retries > self.retries)


_HANDLED: Final[ContextVar[_Handled | None]] = ContextVar("timeoutmgr_handled", default=None)


class DurableRabbitmqBroker(RabbitmqBroker):
    """A broker that keeps delayed messages in *store* until they are due.

    *store* is the URL of a database; *name* is the name of the endpoint, for programs that share a
    database. *url* and *options* are as for ``RabbitmqBroker``. With *in_worker*, each worker
    dispatches due messages.
    """

    def __init__(
        self,
        *,
        url: str | list[str],
        store: str,
        name: str = "dramatiq",
        in_worker: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(url=url, **options)
        self._url: Final = ";".join(map(_place_of, [url] if isinstance(url, str) else url))
        self._store: Final = store
        self._name: Final = name
        self._endpoint: Final = ProcessEndpoint(lambda: installed(self.configuration()))
        self.add_middleware(_Handling())
        if in_worker:
            self.add_middleware(_Dispatch(self))

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint with which this process stores; created and installed at its first use."""
        return self._endpoint()

    def configuration(self) -> EndpointConfiguration:
        """Return a new configuration of the endpoint. Raises ConfigurationError."""
        config = EndpointConfiguration(self._name)
        # dramatiq itself connects without TLS, with the same password.
        broker = transport_from_url(self._url, allow_plaintext=True)
        config.use_transport(self._store, destinations=broker)
        config.use_persistence(self._store)
        config.enable_feature(plugins.load(plugins.FEATURES, "timeout-manager")())
        config.critical_error_action = "log"  # else a worker goes on, and dispatches no more
        return config

    def enqueue(self, message: Any, *, delay: int | None = None) -> Any:
        """Enqueue *message*; store it instead if it is delayed, by *delay* milliseconds.

        A redelivered message retries under the same id: it is stored once. While the store is away,
        a delayed message that dramatiq sends for a handled message waits in dramatiq's delay queue.
        """
        handled = _HANDLED.get()
        is_retry = handled is not None and handled.is_retried_by(message)
        if not is_retry:
            message = message.copy(options={_RUN: uuid.uuid4().hex})
        if delay is None:
            return super().enqueue(message)
        if not isinstance(delay, int | float):
            raise InvalidMessage(f"delay is in milliseconds, got {delay!r:.80}; give a number")
        try:
            return self._stored(message, delay)
        except Exception as error:
            if not (is_retry or (handled is not None and handled.has_ended)):
                raise
            # dramatiq logs an error of its middleware, and then acknowledges the handled message.
            logger.warning(
                "broker could not store message %.80r, it waits in dramatiq's delay queue: %s",
                message.message_id,
                on_one_line(error),
                extra={"event": "message_not_stored", "message_id": message.message_id},
            )
            return super().enqueue(message, delay=delay)

    def _stored(self, message: Any, delay: int) -> Any:
        self.declare_queue(message.queue_name, ensure=True)
        self.emit_before("enqueue", message, delay)
        store(self.endpoint, [_to_send(message, delay)], _log_repeats)
        self.emit_after("enqueue", message, delay)
        return message


class _Handling(Middleware):
    """Knows the message that each thread handles.

    When an actor ends, dramatiq calls the last middleware first: the middleware for retries and
    pipelines follows.
    """

    def before_process_message(self, broker: Any, message: Any) -> None:
        """Note the message, with its retries so far."""
        _note(message, has_ended=False)

    def after_process_message(
        self, broker: Any, message: Any, *, result: Any = None, exception: Any = None
    ) -> None:
        """Note that the actor has ended."""
        _note(message, has_ended=True)


def _note(message: Any, *, has_ended: bool) -> None:
    retries = message.options.get("retries") or 0
    _HANDLED.set(_Handled(message.message_id, retries, has_ended))


def _log_repeats(sent: Sequence[Sent]) -> None:
    """Log a retry that the store already has because its message was delivered again."""
    for one in sent:
        if one.repeat is not None:
            logger.info(
                "broker stored no second retry, the store has timeout %s already",
                one.id,
                extra={"event": "retry_stored_already", "timeout_id": one.id},
            )


class _Dispatch(Middleware):
    """Runs the satellites of the broker's endpoint in a worker."""

    def __init__(self, broker: DurableRabbitmqBroker) -> None:
        self._broker: Final = broker
        self._dispatch: Final = WorkerDispatch()

    def after_worker_boot(self, broker: Any, worker: Any) -> None:
        """Start the endpoint; in the background if a server is away, and the worker goes on."""
        try:
            self._dispatch.start(self._broker.configuration())
        except Exception:  # dramatiq would log it, and report that the worker is ready for action
            log_not_started()

    def before_worker_shutdown(self, broker: Any, worker: Any) -> None:
        """Stop the endpoint: messages on their way are finished, all others stay stored."""
        self._dispatch.stop()


def _place_of(url: str) -> str:
    """Return *url* without pika's connection options; ``ssl_options`` stay, to be refused."""
    return url if "ssl_options=" in url else re.sub(r"\?[^;]*", "", url)


def _to_send(message: Any, delay: int) -> ToSend:
    properties = BasicProperties(delivery_mode=2, priority=message.options.get("broker_priority"))
    options = message.options
    parts = (message.message_id, options.get(_RUN) or uuid.uuid4().hex, options.get("retries", 0))
    message_id = str(uuid.uuid5(_NAMESPACE, repr(parts)))
    return ToSend(
        message.queue_name,
        message.actor_name,
        Foreign(
            Route("", message.queue_name),
            AMQP,
            b"".join(properties.encode()),
            message.encode(),
            # The id decides: a repeat with another traceback, say, is still the same message.
            message_id,
        ),
        SendOptions(
            # dramatiq itself handles a message with a negative delay at once. The limit is past the
            # calendar, and avoids the overflow of a quotient.
            delay=min(max(delay, 0), 10**18) / 1000,
            message_id=message_id,
            saga_id=message.message_id,
            cancellable=True,
        ),
    )
