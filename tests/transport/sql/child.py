"""A consumer in a process of its own, which is going to be killed.

Arguments: URL, prefix, queue, how many to lease, and how: ``ours`` or ``kombu``.
"""

import sys
from typing import Any

import kombu as kombu_package

from timeoutmgr.transport.sql import SqlTransport, register

kombu: Any = kombu_package  # its annotations are too few to check against


def lease(url: str, prefix: str, queue: str, count: int) -> object:
    """Lease by our receiver."""
    transport = SqlTransport(url, prefix=prefix)
    receiver = transport.session().receiver(queue, prefetch=count)
    received = receiver.receive(count, 10)
    assert len(received) == count, received
    return transport, receiver


def consume(url: str, prefix: str, queue: str, count: int) -> object:
    """Lease by a kombu consumer that never acknowledges."""
    register()
    connection = kombu.Connection(f"timeoutmgr+{url}", transport_options={"prefix": prefix})
    got: list[object] = []
    consumer = kombu.Consumer(
        connection.channel(), [kombu.Queue(queue)], on_message=got.append, prefetch_count=count
    )
    consumer.consume()
    while len(got) < count:
        connection.drain_events(timeout=10)
    return connection, consumer


def main() -> None:
    """Lease, say so, and wait to be killed."""
    url, prefix, queue, count, how = sys.argv[1:]
    _kept = (lease if how == "ours" else consume)(url, prefix, queue, int(count))
    print("leased", flush=True)
    sys.stdin.read()
