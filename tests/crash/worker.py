"""The endpoint of a process that is killed, and of the next; forked by ``tests.crash.forked``."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any

from timeoutmgr import DelayedDeliverySettings, Endpoint, EndpointConfiguration
from timeoutmgr.contracts import (
    ReroutesTimeouts,
    SendResult,
    Transport,
    TransportSession,
)
from timeoutmgr.deadletter import DeadLetterQueues, DeadLetterStore, DeliveryOptions, JournalLevel
from timeoutmgr.endpoint.configuration import persistence_from_url, transport_from_url
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.errors import MessageRejected, TransportUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_micros
from timeoutmgr.message.message import Outgoing
from timeoutmgr.persistence import SqlDelayedMessageStore, SqlSettings
from timeoutmgr.persistence.sql.partitions import conversion as replacing
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.transport.sql import SqlQueueSettings

POISON = "-poison"


class SingleForm:
    """A store without its methods for batches."""

    def __init__(self, inner: SqlDelayedMessageStore) -> None:
        for name in (
            *("initialize", "setup_infrastructure", "transaction", "store", "next", "close"),
            *("fetch_next_due_timeout", "remove", "increment_failure_count"),
        ):
            setattr(self, name, getattr(inner, name))


class Stumbling:
    """A transport whose first sends to one queue fail, as when the broker goes away."""

    def __init__(self, inner: Transport, queue: str, times: int) -> None:
        self._inner = inner
        self._queue = queue
        self._left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def session(self) -> Any:
        return _StumblingSession(self._inner.session(), self)

    def stumbles(self, outgoing: Sequence[Outgoing]) -> bool:
        """Return whether this send is to fail."""
        if any(one.destination.endswith(POISON) for one in outgoing):
            raise RuntimeError("no transport can do this")
        if not self._left or all(one.destination != self._queue for one in outgoing):
            return False
        self._left -= 1
        return True


class _StumblingSession:
    def __init__(self, inner: TransportSession, transport: Stumbling) -> None:
        self._inner = inner
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        # Not a method of this class: some sessions lack it, and callers ask whether it is there.
        return partial(self._unless_it_stumbles, found) if name == "start_sending" else found

    def send(self, outgoing: Sequence[Outgoing], **how: Any) -> list[SendResult]:
        results: list[SendResult] = self._unless_it_stumbles(self._inner.send, outgoing, **how)
        return results

    def _unless_it_stumbles(
        self, send: Callable[..., Any], outgoing: Sequence[Outgoing], **how: Any
    ) -> Any:
        if self._transport.stumbles(outgoing):
            raise TransportUnavailable("the test wants it so")
        return send(outgoing, **how)


def configuration(given: dict[str, Any]) -> EndpointConfiguration:
    """Return the endpoint that the test asked for, without its handlers."""
    config = EndpointConfiguration(given["name"])
    config.error_queue = f"{given['name']}.error"
    options = dict(given["transport_options"])
    if not given["transport"].startswith("amqp"):
        options["settings"] = SqlQueueSettings(lease=timedelta(seconds=given.get("lease", 60)))
    transport = transport_from_url(given["transport"], **options)
    if "stumbles" in given or given["delayed"]:
        transport = Stumbling(transport, given.get("stumbles", ""), 3)
    if given["delayed"]:
        store: Any = SqlDelayedMessageStore(given["store"])
        if given["delayed"] == "single":
            store = SingleForm(store)
        config.use_transport(
            transport,
            delayed_delivery=DelayedDeliverySettings(
                store,
                number_of_retries=1,
                batch=3,
            ),
        )
    else:
        config.use_transport(transport)
        config.use_persistence(
            persistence_from_url(
                given["store"],
                settings=SqlSettings(history="full", partitions=given.get("partitions", "off")),
                **given["store_options"],
            )
        )
        # Small, so that the messages of the workload make several batches and chunks.
        config.enable_feature(TimeoutManager(chunk=3, store_batch=3, concurrency=1))
    vars(replacing).update(given.get("replacing", {}))
    config.transaction_mode = given["mode"]
    config.concurrency = 1
    config.recoverability = RecoverabilitySettings(
        immediate=1, delayed=50, increase=timedelta(milliseconds=50)
    )
    if given["dead_letters"]:
        # Its own messages request dead-lettering only explicitly: the error queue gets the rest.
        config.enable_feature(
            DeadLetterQueues(
                node=given["name"],
                store=DeadLetterStore(given["store"], **given["store_options"]),
                dead_letter=False,
                journaled=(given["name"],),
                sweep_interval=timedelta(milliseconds=100),
            )
        )
    return config


class Handlers:
    """The endpoint's handlers of its own messages."""

    def __init__(self, config: EndpointConfiguration, target: str) -> None:
        self._target = target
        self._transport = config.settings().transport
        self.endpoint: Endpoint | None = None
        config.add_handler("Flaky", self.flaky)
        config.add_handler("Move", self.move)
        config.add_handler("CancelLabel", self.cancel_label)
        config.add_handler("Slow", self.slow)
        config.add_handler("Scratch", self.scratch)
        config.add_handler("Reject", self.reject)
        config.add_handler("Keep", self.keep)
        config.add_handler("Kept", lambda _body, _context: None)

    def flaky(self, body: Any, context: HandlerContext) -> None:
        """Fail at first; when retried, send one message now and one later."""
        if headers.RETRIES not in context.headers:
            raise RuntimeError("fails at first")
        # Ids of its own making: a repeat of this message must not become another message.
        context.send(self._target, "Done", body, message_id=f"{context.message_id}-done")
        later = f"{context.message_id}-later"
        context.send(self._target, "Later", body, message_id=later, delay=0.1)

    def move(self, body: Any, _context: HandlerContext) -> None:
        """Reroute a timeout to where it goes, and reschedule it; retried until it is stored."""
        assert self.endpoint is not None
        store, found = self.endpoint._parts.features.store, self.endpoint.timeouts.show(body["id"])
        if found is None:  # stored after this look it would be rescheduled without a reroute
            raise RuntimeError("is not stored yet")
        if isinstance(store, ReroutesTimeouts) and found[1] is not None:
            store.reroute([found[1].key], found[1].destination)
        self.endpoint.timeouts.reschedule(body["id"], deliver_at=from_micros(body["due"]))

    def cancel_label(self, body: Any, _context: HandlerContext) -> None:
        """Cancel the timeouts of a label, also those that are not stored yet."""
        assert self.endpoint is not None
        self.endpoint.timeouts.cancel_where(labels=body)

    def slow(self, _body: Any, _context: HandlerContext) -> None:
        """Take longer than a third of the lease, twice."""
        threading.Event().wait(0.9)

    def reject(self, _body: Any, _context: HandlerContext) -> None:
        """Leave a dead letter."""
        raise MessageRejected("is not wanted here")

    def keep(self, body: Any, context: HandlerContext) -> None:
        """Send a message that is kept until its receipt, and a message with a journal entry."""
        kept = DeliveryOptions(transactional=True, journal=JournalLevel.BOTH)
        context.send_local("Kept", body, message_id=f"{context.message_id}-kept", delivery=kept)
        copied = DeliveryOptions(journal=JournalLevel.JOURNAL)
        context.send_local("Kept", body, message_id=f"{context.message_id}-copy", delivery=copied)

    def scratch(self, body: Any, _context: HandlerContext) -> None:
        """Create a queue and delete it."""
        with closing(self._transport.session()) as session:
            session.create_queues([body])
            session.delete_queues([body])


def main(given: dict[str, Any]) -> int:
    """Run until told to end."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    config = configuration(given)
    handlers = Handlers(config, given["target"])
    handlers.endpoint = endpoint = Endpoint(config)
    if given.get("installs"):
        endpoint.install()
        endpoint.install()
    if given.get("restarts"):
        endpoint.start()
        endpoint.stop()
    endpoint.run()
    return 0 if endpoint.critical_error is None else 3
