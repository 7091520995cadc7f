"""The consumer, as ``timeoutmgr --app chaos.consumer:consumer run`` finds it.

A plain function handles some of the messages, a coroutine function the others. Both fail for the
messages that the seed chooses.
"""

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy.orm import Session

from chaos.consumer_ledger import ConsumerLedger, Delivery
from chaos.environment import PROCESS, Environment
from chaos.failure_ledger import FAILURES, FailureLedgerWriter
from chaos.foreign_messages import defect_of, is_foreign
from chaos.handling import AWAITED, PLAIN, Failing
from chaos.received_message import delivery_of
from timeoutmgr import AsyncHandlerContext, EndpointConfiguration, HandlerContext
from timeoutmgr.transport.work import Work

NETWORK_TIME: Final = 0.05
"""Seconds that a coroutine waits, instead of a network call, if other coroutines can run."""


class HandlerFailure(Exception):
    """The failure that the seed chose for a message."""


def consumer() -> EndpointConfiguration:
    """Return the endpoint of the consumer: it records each delivery."""
    environment = Environment.load()
    config = environment.receiving()
    return recording(config, DeliveryRecorder(environment), beside=environment.one_database)


def recording(
    config: EndpointConfiguration, recorder: "DeliveryRecorder", *, beside: bool
) -> EndpointConfiguration:
    """Return *config* with handlers; the ledger is *beside* the queues, or in a separate file."""

    @config.handler(PLAIN)
    def write_down(body: Mapping[str, Any], context: HandlerContext) -> None:
        # In a database that queue and ledger share, the row and the acknowledgement are one
        # transaction: a rolled back message leaves no row.
        recorder.record(recorder.seen(body["name"], context), context.session if beside else None)

    @config.handler(AWAITED)
    async def write_down_awaited(body: Mapping[str, Any], context: AsyncHandlerContext) -> None:
        with recorder.coroutine() as at_once:
            seen = replace(recorder.seen(body["name"], context), at_once=at_once)
            if beside:
                await context.session.run_sync(lambda session: recorder.record(seen, session))
                return
            await asyncio.sleep(NETWORK_TIME)
            await asyncio.to_thread(recorder.record, seen, None)

    return config


class DeliveryRecorder:
    """Records each delivery with its batch, and fails for the messages that the seed chooses."""

    def __init__(self, environment: Environment) -> None:
        self._plan = environment.handling
        self._deliveries = ConsumerLedger(environment)
        self._failures = FailureLedgerWriter(environment.file(FAILURES))
        self._failed: set[str] = set()
        self._batches: WeakKeyDictionary[Work, int] = WeakKeyDictionary()
        self._begun = 0
        self._lock = threading.Lock()
        self._running = 0

    def seen(self, name: str, context: HandlerContext) -> Delivery:
        """Return the row of a message that is being handled.

        A foreign message that differs from what was sent fails, and ends in the error queue, where
        the judge finds no cause for it.
        """
        if is_foreign(context.headers) and (defect := defect_of(name, context.headers)):
            raise HandlerFailure(defect)
        return replace(delivery_of(name, context), batch=self._batch(context))

    def record(self, delivery: Delivery, session: Session | None) -> None:
        """Write the row; raise HandlerFailure if the message is to fail now."""
        if session is None:
            # The row is committed at once: fail before it.
            self._fail(delivery)
            self._deliveries.write(delivery, None)
            return
        self._deliveries.write(delivery, session)
        self._fail(delivery)  # after the row, which has to be undone

    def close(self) -> None:
        """Close both ledgers."""
        self._deliveries.close()
        self._failures.close()

    @contextmanager
    def coroutine(self) -> Iterator[int]:
        """Yield how many coroutines run; only on their loop."""
        self._running += 1
        try:
            yield self._running
        finally:
            self._running -= 1

    def _fail(self, delivery: Delivery) -> None:
        failing = self._plan.failing_of(delivery.name)
        if failing is Failing.NEVER:
            return
        if failing is Failing.ONCE and delivery.name in self._failed:
            return
        self._failed.add(delivery.name)
        self._failures.write(delivery)
        raise HandlerFailure(f"the seed lets {delivery.name} fail {failing}")

    def _batch(self, context: HandlerContext) -> str:
        """Return a name for the unit of work of *context*; empty for coroutines that run at once.

        A handler has no public access to its batch, whose transaction belongs to the endpoint.
        """
        work = context._session._work
        if not isinstance(work, Work):
            return ""
        with self._lock:
            if work not in self._batches:
                self._begun += 1
                self._batches[work] = self._begun
            return f"{os.environ[PROCESS]}/{self._batches[work]}"
