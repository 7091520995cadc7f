"""The product itself: a handler of the endpoint that stored the message executes the job.

``BENCH_STORE`` names the database of the timeouts if it is not that of the queues.
"""

import os
import threading

from timeoutmgr import Endpoint, EndpointConfiguration, HandlerContext, SendOptions, ToSend
from timeoutmgr.endpoint.configuration import persistence_from_url
from timeoutmgr.satellites import TimeoutManager

from peers import job

STORE = "BENCH_STORE"
MODE = "BENCH_MODE"
THREADS = "BENCH_THREADS"
_NAME = "bench"


def configuration(given: job.Given) -> EndpointConfiguration:
    config = EndpointConfiguration(_NAME)
    config.use_transport(given.url)
    config.use_persistence(persistence_from_url(os.environ.get(STORE, given.url)))
    config.enable_feature(TimeoutManager())
    if mode := os.environ.get(MODE):
        config.transaction_mode = mode
    if threads := os.environ.get(THREADS):
        config.concurrency = int(threads)
    return config


def accept(given: job.Given) -> None:
    body = {"text": job.TEXT, "headers": job.HEADERS}
    options = SendOptions(deliver_at=given.at)
    endpoint = Endpoint(configuration(given))  # not started: it sends, and the worker stores
    endpoint.send_many(ToSend(_NAME, "note", body, options) for _ in range(given.count))
    endpoint.close()


def work(given: job.Given) -> None:
    config = configuration(given)

    @config.handler("note")
    def note(body: dict[str, object], _context: HandlerContext) -> None:
        job.note(**body)

    with Endpoint(config):
        threading.Event().wait()


if __name__ == "__main__":
    job.main(accept, work)
