"""Forks processes with kombu consumers in threads, which consume until stdin ends.

Prints a line for each process in which every consumer has received a message.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Any

import kombu as kombu_package

from timeoutmgr.transport.sql import register

kombu: Any = kombu_package  # its annotations are too few to check against


def consume(url: str, prefix: str, name: str, received: threading.Event) -> None:
    """Send a message to the queue *name*, receive it, and wait for more."""

    def on_message(_body: Any, message: Any) -> None:
        message.ack()
        received.set()

    with kombu.Connection(url, transport_options={"prefix": prefix}) as connection:
        queue = kombu.Queue(name, auto_delete=True)
        with connection.Consumer([queue], callbacks=[on_message]):
            connection.Producer().publish({}, routing_key=name)
            while not _stop.is_set():
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.5)


def work(url: str, prefix: str, count: int) -> None:
    """Have *count* consumers in threads."""
    all_received = []
    threads = []
    for number in range(count):
        all_received.append(threading.Event())
        given = (url, prefix, f"{os.getpid()}-{number}", all_received[-1])
        threads.append(threading.Thread(target=consume, args=given))
        threads[-1].start()
    for received in all_received:
        received.wait()
    print("all received", flush=True)
    sys.stdin.read()
    _stop.set()
    for thread in threads:
        thread.join()


_stop = threading.Event()


def main(url: str, prefix: str, *counts: str) -> None:
    """Fork a process for each of *counts*, when this process has used the database itself."""
    register()
    kombu.Connection(url, transport_options={"prefix": prefix}).connect()
    children = []
    for count in counts:
        if (child := os.fork()) == 0:
            work(url, prefix, int(count))
            os._exit(0)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    sys.exit(len(failed))


if __name__ == "__main__":
    main(*sys.argv[1:])
