"""Delayed tasks in a worker: move into the store, count for ``inspect delayed``, and revoke."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

from celery.utils.functional import maybe_list
from celery.worker.control import Panel, inspect_command, scheduled

from timeoutmgr.contrib.celery.delays import DELAYS, DurableDelays, delays_of
from timeoutmgr.contrib.celery.hooks import stamps_of
from timeoutmgr.contrib.celery.tasks import bears
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.message.redaction import on_one_line

logger = logging.getLogger(__name__)

_REST: Final = 10.0
"""Seconds for which tasks are parked after the store failed: a dead server fails slowly."""


def begin(consumer: Any) -> None:
    """Make the *consumer* of a worker take over delayed tasks from its next start on."""
    takeover = consumer.timeoutmgr_takeover = Takeover(consumer)
    update = consumer.update_strategies

    def update_strategies() -> None:
        update()
        for name, strategy in consumer.strategies.items():
            consumer.strategies[name] = takeover.before(strategy)

    consumer.update_strategies = update_strategies


class Takeover:
    """The delayed tasks of one consumer; *monotonic* is a clock."""

    def __init__(self, consumer: Any, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.moved = 0
        self._consumer: Final = consumer
        self._delays: Final = delays_of(consumer.app)
        self._monotonic: Final = monotonic
        self._rests_until = float("-inf")

    def before(self, strategy: Any) -> Any:
        """Wrap Celery's *strategy* of a task, which gets the messages that are not taken over."""

        def receive(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
            about = message.headers if body is None else body
            if about.get("eta") and self._moves_in(message, body, about):
                self.moved += 1
                ack(logger, self._consumer.connection_errors)
                return None
            return strategy(message, body, ack, reject, callbacks)

        return receive

    def _moves_in(self, message: Any, body: Any, about: Mapping[str, Any]) -> bool:
        task_id, state = about.get("id"), self._consumer.controller.state
        queue = _queue_of(self._consumer, message.delivery_info)
        if queue is None or self._monotonic() < self._rests_until:
            return False
        try:
            if task_id in state.revoked or bears(about, state.revoked_stamps):
                return False
            return self._delays.move_in(message, body, queue)
        except Exception as error:  # Celery's own way handles every task that ours cannot handle
            if isinstance(error, StorageUnavailable | TransportUnavailable):
                self._rests_until = self._monotonic() + _REST
            logger.warning(
                "worker could not store task %.80s, it waits in memory: %s",
                task_id,
                on_one_line(error),
                extra={"event": "task_not_stored", "message_id": task_id},
            )
            return False


def _queue_of(consumer: Any, delivery: Any) -> Any:
    """Return the queue from which a message came; None if it may be several."""
    queues = consumer.task_consumer.queues
    exchange, key = delivery.get("exchange") or "", delivery.get("routing_key")
    if exchange:
        found = [q for q in queues if q.exchange.name == exchange and q.routing_key == key]
    else:
        found = [queue for queue in queues if queue.name == key]
    candidates = found or queues
    return candidates[0] if len(candidates) == 1 else None


@inspect_command()  # type: ignore[untyped-decorator]  # celery is untyped
def delayed(state: Any, **_given: Any) -> dict[str, Any]:
    """Count delayed tasks: in the worker's memory, moved into the store, and stored."""
    timeouts = delays_of(state.app).endpoint.timeouts
    return {
        "in memory": len(scheduled(state)),
        "moved": state.consumer.timeoutmgr_takeover.moved,
        "stored": str(timeouts.count_in_bounds()),
    }


def _revoke_ids(delays: DurableDelays, given: Mapping[str, Any]) -> None:
    for task_id in maybe_list(given["task_id"]) or ():
        delays.revoke(task_id)


def _revoke_stamped(delays: DurableDelays, given: Mapping[str, Any]) -> None:
    delays.revoke_stamped(stamps_of(given["headers"]))


def _also_in_the_store(name: str, remove: Callable[[DurableDelays, Any], None]) -> None:
    """Make Celery's control command *name* also remove stored tasks, for apps with delays.

    Programs without the delays send it, and ``celery control``.
    """
    command = Panel.data[name]

    @wraps(command)
    def obey(state: Any, **given: Any) -> Any:
        answer = command(state, **given)
        if DELAYS in vars(state.app):
            try:
                remove(delays_of(state.app), given)
            except Exception as error:  # the worker itself has already obeyed
                logger.warning(
                    "worker could not remove stored tasks by command %s: %s",
                    name,
                    on_one_line(error),
                    extra={"event": "stored_tasks_not_revoked"},
                )
        return answer

    Panel.data[name] = obey


_also_in_the_store("revoke", _revoke_ids)
_also_in_the_store("terminate", _revoke_ids)
_also_in_the_store("revoke_by_stamped_headers", _revoke_stamped)
