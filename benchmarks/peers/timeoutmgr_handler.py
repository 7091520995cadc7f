"""The product itself: a handler of the endpoint that stored the message executes the job.

``BENCH_STORE`` names the database of the timeouts if it differs from that of the queues. With
``BENCH_SPACING`` each job is due that many seconds after its predecessor, and records its lateness;
with ``BENCH_WAIT`` it waits that many seconds, in ``BENCH_COROUTINES`` concurrent coroutines.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from peers import job
from timeoutmgr import (
    AsyncHandlerContext,
    Endpoint,
    EndpointConfiguration,
    HandlerContext,
    SendOptions,
    ToSend,
)
from timeoutmgr.endpoint.configuration import persistence_from_url
from timeoutmgr.satellites import TimeoutManager

STORE = "BENCH_STORE"
MODE = "BENCH_MODE"
THREADS = "BENCH_THREADS"
DISPATCHERS = "BENCH_DISPATCHERS"
SPACING = "BENCH_SPACING"
WAIT = "BENCH_WAIT"
COROUTINES = "BENCH_COROUTINES"
_NAME = "bench"


def configuration(given: job.Given) -> EndpointConfiguration:
    config = EndpointConfiguration(_NAME)
    config.use_transport(given.url)
    config.use_persistence(persistence_from_url(os.environ.get(STORE, given.url)))
    config.enable_feature(TimeoutManager(concurrency=int(os.environ.get(DISPATCHERS, "1"))))
    if mode := os.environ.get(MODE):
        config.transaction_mode = mode
    if threads := os.environ.get(THREADS):
        config.concurrency = int(threads)
    if coroutines := os.environ.get(COROUTINES):
        config.async_concurrency = int(coroutines)
    return config


def accept(given: job.Given) -> None:
    endpoint = Endpoint(configuration(given))  # not started: it sends, and the worker stores
    endpoint.send_many(_messages(given))
    endpoint.close()


def _messages(given: job.Given) -> Iterator[ToSend]:
    spacing = float(os.environ.get(SPACING, 0))
    body: dict[str, object] = {"text": job.TEXT, "headers": job.HEADERS}
    for number in range(given.count):
        each = replace(given, due=given.due + number * spacing)
        more = {"due": each.due} if spacing else {}
        yield ToSend(_NAME, "note", {**body, **more}, SendOptions(deliver_at=each.at))


def work(given: job.Given) -> None:
    config = configuration(given)
    wait = float(os.environ.get(WAIT, 0))

    def note(body: dict[str, Any], _context: HandlerContext) -> None:
        if wait:
            time.sleep(wait)
        if "due" in body:
            job.record(time.time() - body["due"])
        else:
            job.note(**body)

    async def note_later(body: dict[str, Any], _context: AsyncHandlerContext) -> None:
        await asyncio.sleep(wait)
        job.note(**body)

    config.add_handler("note", note_later if COROUTINES in os.environ else note)
    Endpoint(config).run()


if __name__ == "__main__":
    job.main(accept, work)
