"""The parts of a worker that dispatch due tasks, and that take delayed tasks over."""

from __future__ import annotations

import logging
from typing import Any, Final

from celery import bootsteps

from timeoutmgr.contrib.celery.hooks import delays_of
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.thread_task import ThreadTask

logger = logging.getLogger(__name__)

_AWAY: Final = (StorageUnavailable, TransportUnavailable)
_SHORTEST: Final = 1.0
_LONGEST: Final = 60.0
"""Seconds between two attempts to start, at first and at last."""


class SenderStep(bootsteps.Step):  # type: ignore[misc]  # celery is untyped
    """Makes the endpoint that sends, before the pool forks its processes, which then go on with it.

    Otherwise the first retry in each process would import and install it: a second of the processor
    in which the process runs no task.
    """

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        try:
            self._endpoint: Endpoint = delays_of(worker.app).endpoint
        except _AWAY as error:
            logger.warning(
                "worker makes the endpoint of its delays at the first delayed task, since a server "
                "is away: %s",
                on_one_line(error),
                extra={"event": "sender_not_prepared"},
            )


class LateStart(ThreadTask):
    """Starts an endpoint once its servers are there, after pauses that grow from *pause*."""

    thread_name = "timeoutmgr-start"

    def __init__(self, endpoint: Endpoint, pause: float = _SHORTEST) -> None:
        super().__init__()
        self._endpoint: Final = endpoint
        self._pause: Final = pause

    def _run(self) -> None:
        pause = self._pause
        while not self._stop.wait(pause):
            try:
                self._endpoint.start()
                return
            except _AWAY as error:
                pause = min(2 * pause, _LONGEST)
                _log_away(error, pause)
            except Exception:
                logger.exception(
                    "worker dispatches no due tasks: start it anew once this is mended",
                    extra={"event": "dispatch_not_started"},
                )
                return


def _log_away(error: Exception, pause: float) -> None:
    logger.warning(
        "worker dispatches no due tasks yet, it tries again in %g s: %s",
        pause,
        on_one_line(error),
        extra={"event": "dispatch_delayed"},
    )


class DispatchStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery is untyped
    """Runs the satellites of the app's delays in the worker's main process.

    It starts behind the pool: processes that are forked before it inherit no thread of it.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._endpoint: Endpoint | None = None
        self._late: LateStart | None = None

    def start(self, worker: Any) -> None:
        """Start the endpoint; in the background if a server is away, and the worker goes on."""
        endpoint = self._endpoint = Endpoint(delays_of(worker.app).configuration())
        try:
            endpoint.start()
        except _AWAY as error:
            _log_away(error, _SHORTEST)
            self._late = LateStart(endpoint)
            self._late.start()

    def stop(self, worker: Any) -> None:
        """Stop the endpoint: tasks on their way are finished, all others stay stored."""
        late, self._late = self._late, None
        if late is not None:
            late.stop()
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()

    def terminate(self, worker: Any) -> None:
        """Stop the endpoint."""
        self.stop(worker)


class TakeoverStep(bootsteps.Step):  # type: ignore[misc]  # celery is untyped
    """Has delayed tasks stored that other programs published, instead of parking them in memory.

    A program without the delays publishes a delayed task at once. The worker stores it, and only
    then acknowledges it: a crash in between stores it again under the same id, which is once.
    """

    def __init__(self, consumer: Any, **_options: Any) -> None:
        from timeoutmgr.contrib.celery import takeover

        takeover.begin(consumer)
