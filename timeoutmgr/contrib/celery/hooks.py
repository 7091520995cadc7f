"""Subclasses of Celery's senders and remote control that first ask the delays of their app."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any

from celery.app.amqp import AMQP
from celery.app.control import TERM_SIGNAME, Control
from kombu.exceptions import OperationalError

from timeoutmgr.contrib.celery.delays import DurableDelays, delays_of
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable


class DelayingAMQP(AMQP):  # type: ignore[misc]  # celery is untyped
    """Celery's sender of tasks, whose producer stores delayed tasks.

    Every way of sending passes here, when routes, serializer and headers are final:
    ``apply_async``, ``send_task``, beat, canvas and retries.
    """

    def _create_task_sender(self) -> Callable[..., Any]:
        send: Callable[..., Any] = super()._create_task_sender()
        delays = delays_of(self.app)

        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            return send(DelayingProducer(producer, delays), name, message, **options)

        return send_task_message


class DelayingProducer:
    """A kombu producer for one send; it stores tasks that must not be published yet.

    Celery may call it several times: the same send is the same run.
    """

    def __init__(self, producer: Any, delays: DurableDelays) -> None:
        self._producer = producer
        self._delays = delays
        self._run = uuid.uuid4().hex

    def __getattr__(self, name: str) -> Any:
        return attrgetter(name)(self._producer)

    def publish(self, body: Any, **options: Any) -> Any:
        """Publish a task, or store it until it is due."""
        options["headers"] = self._delays.marked(body, options.get("headers"), self._run)
        if self._delays.keeps(self._producer, body, options):
            return None
        return self._producer.publish(body, **options)


class DelayingControl(Control):  # type: ignore[misc]  # celery is untyped
    """Celery's remote control; it removes stored tasks before it notifies the workers.

    If the store is away, workers are still notified; then kombu's OperationalError is raised.
    """

    def revoke(
        self,
        task_id: str | Iterable[str],
        destination: Any = None,
        terminate: bool = False,
        signal: str | None = TERM_SIGNAME,
        **options: Any,
    ) -> Any:
        """Revoke tasks: remove them permanently, and notify workers that may have them."""
        ids = [task_id] if isinstance(task_id, str) else list(task_id)
        delays, left = delays_of(self.app), dict.fromkeys(ids)
        with _after_the_broadcast() as attempt:
            for each in ids:
                if attempt(partial(delays.revoke, each)) and not terminate:
                    left.pop(each, None)
            if not left:
                return [] if options.get("reply") else None
            named = task_id if isinstance(task_id, str) else [*left]
            return super().revoke(named, destination, terminate, signal, **options)

    def revoke_by_stamped_headers(self, headers: Any, *arguments: Any, **options: Any) -> Any:
        """Revoke tasks by stamps: remove stored tasks permanently, and notify workers."""
        delays = delays_of(self.app)
        with _after_the_broadcast() as attempt:
            attempt(lambda: delays.revoke_stamped(stamps_of(headers)))
            return super().revoke_by_stamped_headers(headers, *arguments, **options)


def stamps_of(headers: Any) -> Mapping[str, Any]:
    """Return the stamps in a revocation's *headers*: a table, or texts ``name=value``."""
    if isinstance(headers, Mapping):
        return headers
    return dict(one.split("=", 1) for one in headers)


@contextmanager
def _after_the_broadcast() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Yield an attempt at the store; raise its first failure when the block ends.

    A store that failed once is not asked again: each attempt would take as long.
    """
    failures: list[Exception] = []

    def attempt(call: Callable[[], Any]) -> Any:
        try:
            return None if failures else call()
        except (StorageUnavailable, TransportUnavailable) as error:
            failures.append(error)
            return None

    yield attempt
    for error in failures:
        raise OperationalError(str(error)) from error
