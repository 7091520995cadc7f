"""dramatiq: delays and retries of a RabbitMQ broker rest in a database.

``dramatiq.set_broker(DurableRabbitmqBroker(url=…, store=…))`` is the one change. Workers send
what is due.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from dramatiq import Middleware
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from pika import BasicProperties

from timeoutmgr import plugins
from timeoutmgr.contrib.process_endpoint import ProcessEndpoint
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.message.foreign import AMQP, Foreign, Route
from timeoutmgr.sender.composer import SendOptions, ToSend

_NAMESPACE: Final = uuid.UUID("c6e1f7a4-8b53-5b9c-a0ad-6d6f5a1b7c10")
_RUN: Final = "timeoutmgr_run"
"""An option of each message, fresh for each first send: dramatiq copies it into retries."""


class DurableRabbitmqBroker(RabbitmqBroker):
    """A broker whose delayed messages rest in *store* until they are due.

    *store* is the URL of a database, and *name* that of the endpoint, for programs that share a
    database. *url* and *options* are those of ``RabbitmqBroker``. With *in_worker* each worker
    dispatches due messages.
    """

    def __init__(
        self,
        *,
        url: str,
        store: str,
        name: str = "dramatiq",
        in_worker: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(url=url, **options)
        self._url: Final = url
        self._store: Final = store
        self._name: Final = name
        self._endpoint: Final = ProcessEndpoint(self._installed)
        if in_worker:
            self.add_middleware(_Dispatch(self))

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that this process stores with; made and installed at its first use."""
        return self._endpoint()

    def configuration(self) -> EndpointConfiguration:
        """Return a new configuration of the endpoint. Raises ConfigurationError."""
        config = EndpointConfiguration(self._name)
        config.use_transport(self._store, destinations=self._url)
        config.use_persistence(self._store)
        config.enable_feature(plugins.load(plugins.FEATURES, "timeout-manager")())
        return config

    def _installed(self) -> Endpoint:
        endpoint = Endpoint(self.configuration())
        endpoint.install()
        return endpoint

    def enqueue(self, message: Any, *, delay: int | None = None) -> Any:
        """Enqueue *message*; store it instead if it is delayed, by *delay* milliseconds.

        A redelivered message retries under the same id: it is stored once.
        """
        if not message.options.get("retries"):
            message = message.copy(options={_RUN: uuid.uuid4().hex})
        if delay is None:
            return super().enqueue(message)
        self.declare_queue(message.queue_name, ensure=True)
        self.emit_before("enqueue", message, delay)
        self.endpoint.store_many([_to_send(message, delay)])
        self.emit_after("enqueue", message, delay)
        return message


class _Dispatch(Middleware):
    """Runs the satellites of the broker's endpoint in a worker."""

    def __init__(self, broker: DurableRabbitmqBroker) -> None:
        self._broker: Final = broker
        self._endpoint: Endpoint | None = None

    def after_worker_boot(self, broker: Any, worker: Any) -> None:
        """Start the endpoint."""
        self._endpoint = Endpoint(self._broker.configuration())
        self._endpoint.start()

    def before_worker_shutdown(self, broker: Any, worker: Any) -> None:
        """Stop the endpoint: messages on their way are finished, all others stay stored."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()


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
            # The id tells all: a repeat carries another traceback, say, and is no other message.
            message_id,
        ),
        SendOptions(
            delay=delay / 1000,
            message_id=message_id,
            saga_id=message.message_id,
            cancellable=True,
        ),
    )
