"""Worker steps that dispatch due tasks, and that take over delayed tasks."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps

from timeoutmgr.contrib.celery.delays import delays_of
from timeoutmgr.contrib.worker_dispatch import AWAY_ERRORS, WorkerDispatch
from timeoutmgr.message.redaction import on_one_line

logger = logging.getLogger(__name__)


class SenderStep(bootsteps.Step):  # type: ignore[misc]  # celery is untyped
    """Creates the sending endpoint before the pool forks its processes, which then continue it.

    Otherwise the first retry in each process would import and install it: a second of CPU time in
    which the process runs no task.
    """

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        try:
            self._endpoint = delays_of(worker.app).endpoint
        except AWAY_ERRORS as error:
            logger.warning(
                "worker makes the endpoint of its delays at the first delayed task, since a server "
                "is away: %s",
                on_one_line(error),
                extra={"event": "sender_not_prepared"},
            )


class DispatchStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery is untyped
    """Runs the satellites of the app's delays in the worker's main process.

    It starts after the pool, so that forked processes inherit none of its threads.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._dispatch = WorkerDispatch()

    def start(self, worker: Any) -> None:
        """Start the endpoint; in the background if a server is away, and the worker goes on."""
        self._dispatch.start(delays_of(worker.app).configuration())

    def stop(self, worker: Any) -> None:
        """Stop the endpoint: tasks on their way are finished, all others stay stored."""
        self._dispatch.stop()

    terminate = stop


class TakeoverStep(bootsteps.Step):  # type: ignore[misc]  # celery is untyped
    """Stores delayed tasks that other programs published, instead of parking them in memory.

    A program without the delays publishes a delayed task at once. The worker stores it, and only
    then acknowledges it: after a crash in between, the same id makes a second store harmless.
    """

    def __init__(self, consumer: Any, **_options: Any) -> None:
        from timeoutmgr.contrib.celery import takeover

        takeover.begin(consumer)
