"""A process that owns a temporary queue until it is killed, or dies while it sweeps others'.

Arguments: URL, and the crash point at which a sweep dies; without a point it owns the queue.
"""

import sys
from typing import Any

import kombu as kombu_package

from timeoutmgr.crashpoints import arm
from timeoutmgr.transport.sql import register

kombu: Any = kombu_package  # its annotations are too few to check against


def own(connection: Any) -> None:
    """Own a queue with a binding and a message, and consume from it until a kill."""
    channel = connection.default_channel
    replies = kombu.Exchange("replies", "fanout")
    queue = kombu.Queue("temporary", exchange=replies, auto_delete=True)(channel)
    queue.declare()
    queue.consume(callback=lambda message: None)
    connection.Producer().publish("hello", exchange=replies)
    print("owns", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    url, *point = sys.argv[1:]
    register()
    with kombu.Connection(f"timeoutmgr+{url}") as opened:
        if point:
            arm(point[0])
            opened.transport.sql.owned_queues.sweep()
        else:
            own(opened)
