"""The endpoint that dispatches due messages in a framework's worker."""

from __future__ import annotations

import logging
from typing import Final

from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.thread_task import ThreadTask

logger = logging.getLogger(__name__)

AWAY_ERRORS: Final = (StorageUnavailable, TransportUnavailable)
"""Errors which mean that a server is away."""
_SHORTEST: Final = 1.0
_LONGEST: Final = 60.0
"""Minimum and maximum seconds between two attempts to start."""


class WorkerDispatch:
    """Runs the satellites of an endpoint from the start of a worker to its stop."""

    def __init__(self) -> None:
        self._endpoint: Endpoint | None = None
        self._late: LateStart | None = None

    def start(self, config: EndpointConfiguration) -> None:
        """Start the endpoint of *config*; in the background if a server is away."""
        endpoint = self._endpoint = Endpoint(config)
        try:
            endpoint.start()
        except AWAY_ERRORS as error:
            _log_away(error, _SHORTEST)
            self._late = LateStart(endpoint)
            self._late.start()

    def stop(self) -> None:
        """Stop the endpoint: messages on their way are finished, all others stay stored."""
        late, self._late = self._late, None
        if late is not None:
            late.stop()
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()


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
            except AWAY_ERRORS as error:
                pause = min(2 * pause, _LONGEST)
                _log_away(error, pause)
            except Exception:
                log_not_started()
                return


def log_not_started() -> None:
    """Log the current error: the worker continues, but dispatches nothing."""
    logger.exception(
        "worker dispatches nothing that is due: start it anew once this is mended",
        extra={"event": "dispatch_not_started"},
    )


def _log_away(error: Exception, pause: float) -> None:
    logger.warning(
        "worker dispatches nothing that is due yet, it tries again in %g s: %s",
        pause,
        on_one_line(error),
        extra={"event": "dispatch_delayed"},
    )
