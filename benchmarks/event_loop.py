"""How long ``AsyncEndpoint`` keeps an event loop: its longest callback, and a heartbeat beside it.

A task sends delayed messages one after the other. The time of a callback is what the loop's log of
slow callbacks names, and beside it the processor time of the same callbacks: on a busy machine the
first also counts the time in which another program had the processor. A heartbeat asks to be woken
each 10 ms, once by itself and once beside a thread that computes in Python all the time, which
keeps the interpreter's lock for 5 ms whenever it gets it.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from harness.figures import apart
from harness.report import Report, options, parsed
from harness.servers import servers
from harness.workers import Spec, configuration, installed

from timeoutmgr import AsyncEndpoint

HEARTBEAT = 0.01


def main() -> None:
    parser = options(__doc__)
    given = parsed(parser, count=3_000, quick=300)
    with (
        servers("postgres", "rabbitmq") as running,
        installed(running["rabbitmq"], running["postgres"]) as spec,
    ):
        report = Report("Beside an event loop", {"sends": given.count, **running.settings})
        callbacks = [run(sends(spec, given.count)) for _ in range(given.rounds)]
        beats = {
            where: [run(heartbeats(spec, given.count, busy=busy)) for _ in range(given.rounds)]
            for where, busy in (("", False), (" beside a busy thread", True))
        }
    report_callbacks(callbacks, report)
    for where, rounds in beats.items():
        p99 = [1_000 * each[len(each) * 99 // 100] for each in rounds]
        beside = f"spread {apart(p99):.0%}, {len(p99)} rounds of {len(rounds[0]):,}"
        report.bar(
            f"heartbeat{where}, p99", median(p99), 10, at_most=True, unit=" ms", beside=beside
        )
    report.give(given)


@dataclass(slots=True)
class Callbacks:
    """The seconds of each callback of a loop: of a processor, and by the loop's own log."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


def report_callbacks(rounds: list[Callbacks], report: Report) -> None:
    longest = [1_000 * max(each.cpu) for each in rounds]
    walls = ", ".join(f"{1_000 * max(each.wall, default=0):.2f}" for each in rounds)
    over = sum(seconds > 0.001 for each in rounds for seconds in each.wall)
    report.bar(
        "longest callback of sends in a loop, of a processor",
        max(longest),
        1,
        at_most=True,
        unit=" ms",
        beside=f"spread {apart(longest):.0%} in {len(rounds)} rounds of {len(rounds[0].cpu):,}",
    )
    beside = f"the longest of each round: {walls} ms; longer than 1 ms: {over}"
    report.bar(
        "the same by the loop's log, median of the rounds",
        median(1_000 * max(each.wall, default=0) for each in rounds),
        1,
        at_most=True,
        unit=" ms",
        beside=beside,
    )


def run(awaited: Any) -> Any:
    """Return the result of *awaited*, on a new loop."""
    with asyncio.Runner() as runner:
        return runner.run(awaited)


async def sends(spec: Spec, count: int) -> Callbacks:
    """Return the callbacks of a loop on which *count* messages are sent one after the other."""
    async with AsyncEndpoint(configuration(spec)) as endpoint:
        with noted() as callbacks:
            await send_each(endpoint, spec, count)
    return callbacks


async def send_each(endpoint: AsyncEndpoint, spec: Spec, count: int) -> None:
    for number in range(count):
        await endpoint.send(spec.destination, "Note", {"number": number}, delay=86_400)


@contextmanager
def noted() -> Iterator[Callbacks]:
    """Note the time of each callback of the running loop while the block runs."""
    loop, callbacks, logger = asyncio.get_running_loop(), Callbacks(), logging.getLogger("asyncio")
    call = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        call(handle)
        callbacks.cpu.append(time.thread_time() - began)

    def note(record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and "took" in record.msg:
            callbacks.wall.append(float(record.args[1]))  # type: ignore[arg-type]  # it is one
        return False

    logger.addFilter(note)
    asyncio.Handle._run = measured  # type: ignore[method-assign]  # of this program alone
    slow, loop.slow_callback_duration = loop.slow_callback_duration, 0.000_1
    loop.set_debug(True)
    try:
        yield callbacks
    finally:
        loop.set_debug(False)
        loop.slow_callback_duration = slow
        asyncio.Handle._run = call  # type: ignore[method-assign]  # as above
        logger.removeFilter(note)


async def heartbeats(spec: Spec, count: int, *, busy: bool) -> list[float]:
    """Return how late a heartbeat was each time, sorted, while *count* messages are sent."""
    late: list[float] = []

    async def beat() -> None:
        while True:
            asked = time.perf_counter()
            await asyncio.sleep(HEARTBEAT)
            late.append(time.perf_counter() - asked - HEARTBEAT)

    async with AsyncEndpoint(configuration(spec)) as endpoint:
        with thread_that_computes() if busy else nullcontext():
            beating = asyncio.create_task(beat())
            await send_each(endpoint, spec, count)
            beating.cancel()
    return sorted(late)


@contextmanager
def thread_that_computes() -> Iterator[None]:
    is_over = threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            sum(range(1_000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


if __name__ == "__main__":
    main()
