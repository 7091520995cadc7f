"""Purge: removes all messages of an endpoint's queues while no process of it runs."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Final

from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.contracts.reports import LIVE
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.endpoint.attempts import audited
from timeoutmgr.endpoint.configuration import EndpointSettings
from timeoutmgr.endpoint.installation import install, schema_expected
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.message.routes import API

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 100
_QUIET: Final = 1.0
"""Seconds without a message after which a queue is empty."""


def purge(parts: AssembledEndpoint, *, satellites: bool) -> dict[str, int]:
    """Remove the messages of the input queue, or with *satellites* of every queue.

    Return the number of removed messages by queue. Stored timeouts stay. Raises CombinationRefused,
    with nothing removed, while a process of the endpoint is alive, and if no store can tell.
    """
    settings = parts.settings
    if settings.install:
        install(parts)
    with schema_expected(parts):
        _require_no_process(parts)
    queues = {settings.input_queue} if settings.handlers else set()
    if satellites:
        queues |= {each.consumption.queue for each in parts.satellites}
    by, selection = ChangedBy(channel=API), {"queues": sorted(queues)}
    with audited(parts, "purge", by, selection) as work:
        removed = _removed(settings, queues)
        work.changed = sum(removed.values())
    return removed


def _removed(settings: EndpointSettings, queues: set[str]) -> dict[str, int]:
    removed: dict[str, int] = {}
    with closing(settings.transport.session()) as session:
        existing = queues.difference(session.missing_queues(sorted(queues)))
        for queue in sorted(existing):
            removed[queue] = 0
            with closing(session.receiver(queue, prefetch=_AT_ONCE)) as receiver:
                while batch := receiver.receive(_AT_ONCE, _QUIET):
                    receiver.ack(batch)
                    removed[queue] += len(batch)
            logger.warning(
                "endpoint %s removed all %d messages of queue %.80r, as asked",
                settings.name,
                removed[queue],
                queue,
                extra={"event": "queue_purged", "endpoint": settings.name},
            )
    return removed


def _require_no_process(parts: AssembledEndpoint) -> None:
    store = parts.features.store
    if store is None:
        raise CombinationRefused(
            "a purge without a timeout manager",
            "only its store knows whether a process of the endpoint is alive",
            "Remove the messages with the tools of the broker.",
        )
    since = store.now() - LIVE
    alive = [each for each in store.processes() if each.heartbeat > since]
    if alive:
        named = ", ".join(f"{each.host}:{each.pid}" for each in alive[:5])
        raise CombinationRefused(
            "a purge in a started fleet",
            f"{len(alive)} processes of endpoint {parts.settings.name!r} are alive, or ended "
            f"without a stop in the last {LIVE // 60_000_000} minutes ({named})",
            "Stop every process, and start the first with the purge.",
        )
