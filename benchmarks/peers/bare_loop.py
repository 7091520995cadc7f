"""The limit: the steps of ``timeoutmgr_handler`` with py-amqp and psycopg, without a framework.

One process, like all peers: one thread reads and orders keys, a second locks, publishes, confirms
and closes rows, and a third executes and acknowledges deliveries. The code is not safe: no claims,
retries, error queue or handling of outages (``harness.bare``). If the product misses a bar, the
limit shows which part of the time the two servers and their libraries need anyway.
"""

import json
import os
import threading
import time
from typing import Any

from harness import bare, pending

from peers import job
from peers.timeoutmgr_handler import STORE, configuration
from timeoutmgr import Endpoint

NAME = "bench"
CHUNK = 100
ACKNOWLEDGED = 50
BODY = json.dumps({"text": job.TEXT, "headers": job.HEADERS})


def accept(given: job.Given) -> None:
    endpoint = Endpoint(configuration(given))
    endpoint.install()
    endpoint.close()
    due = int(given.due * 1_000_000)
    each = pending.Pending(endpoint=NAME, destination=NAME, count=given.count, due=due)
    pending.load(os.environ[STORE], each)


def work(given: job.Given) -> None:
    threading.Thread(target=execute, args=(given,), daemon=True).start()
    time.sleep(max(0.0, given.due - time.time()))
    bare.dispatch(given.url, os.environ[STORE], NAME, given.count, CHUNK)
    threading.Event().wait()


def execute(given: job.Given) -> None:
    """Execute each delivery; acknowledge fifty deliveries at once, or all that have arrived."""
    with bare.broker(given.url) as connection:
        channel = connection.channel()
        done = 0

        def on_message(message: Any) -> None:
            nonlocal done
            job.note(**json.loads(BODY))  # the rows have bytes of the same size
            done += 1
            if done % ACKNOWLEDGED == 0 or done == given.count:
                channel.basic_ack(message.delivery_tag, multiple=True)

        channel.auto_decode = False
        channel.basic_qos(0, 4 * ACKNOWLEDGED, False)
        channel.basic_consume(NAME, callback=on_message)
        while True:
            connection.drain_events()


if __name__ == "__main__":
    job.main(accept, work)
