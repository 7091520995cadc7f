"""How long ``AsyncEndpoint.send`` blocks an event loop, beside a loop that only calls a thread.

A task makes one call after the other, in four cases: no call; ``asyncio.to_thread`` with a function
that does nothing; an endpoint sends; an endpoint sends, and its timeout manager stores the messages
in the same process. The first two cases measure asyncio by itself.

Each callback is measured by the clock around it, like in the loop's log of slow callbacks, and by
the processor time of its thread. The garbage collector is off meanwhile: its time would count for
the thread that happens to allocate. The log itself needs asyncio's debug mode, which records a
traceback for each call and reads its source lines from the file system: its results are shown
beside those for ``to_thread``.

A heartbeat asks to be woken every 10 ms: alone, and beside a thread that always computes in Python.
Such a thread keeps the interpreter's lock for a switch interval: the usual 5 ms, or 1 ms if the
program calls ``sys.setswitchinterval(0.001)``.
"""

import asyncio
import gc
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, Final, TypeAlias

from harness.figures import apart
from harness.report import Report, options, parsed
from harness.servers import servers
from harness.workers import Spec, configuration, installed

from timeoutmgr import AsyncEndpoint

HEARTBEAT: Final = 0.01
SLOW: Final = 0.001

FEWER: Final = 10
"""Divisor of the number of calls for heartbeats, since each takes at least 10 ms."""

Call: TypeAlias = Callable[[int], Awaitable[object]]
Beside: TypeAlias = Callable[[], AbstractContextManager[object]]


def main() -> None:
    parser = options(__doc__)
    given = parsed(parser, count=3_000, quick=300)
    with (
        servers("postgres", "rabbitmq") as running,
        installed(running["rabbitmq"], running["postgres"]) as spec,
    ):
        report = Report("Beside an event loop", {"calls": given.count, **running.settings})
        rounds = [run(each_way(spec, given.count)) for _ in range(given.rounds)]
    report_callbacks(rounds, report)
    report_heartbeats(rounds, report)
    report.give(given)


def run(awaited: Any) -> Any:
    """Return the result of *awaited*, on a new loop."""
    with asyncio.Runner() as runner:
        return runner.run(awaited)


@dataclass(slots=True)
class Seen:
    """Times of the loop beside one way of calling, in seconds."""

    walls: list[float] = field(default_factory=list)
    """Callbacks, by the clock."""
    cpus: list[float] = field(default_factory=list)
    """The same callbacks, by processor time."""
    logged: list[float] = field(default_factory=list)
    """Callbacks over 1 ms in the loop's log, in debug mode, during as many calls."""
    late: dict[str, list[float]] = field(default_factory=dict)
    """Delays of each heartbeat, sorted, by the thread that ran beside the loop."""


SeenByWay: TypeAlias = dict[str, Seen]


async def each_way(spec: Spec, count: int) -> SeenByWay:
    """Return the times of this loop beside each way of calling."""
    found = {}
    for name, way in WAYS.items():
        async with way(spec) as call:
            seen = found[name] = Seen()
            with timed_callbacks(seen):
                await call_each(call, count)
            with logged_callbacks(seen):
                await call_each(call, count)
            for where, beside in PLACES.items():
                with beside():
                    seen.late[where] = await heartbeats(call, count // FEWER)
    return found


async def call_each(call: Call, count: int) -> None:
    for number in range(count):
        await call(number)


@asynccontextmanager
async def nothing(_spec: Spec) -> AsyncIterator[Call]:
    """Call nothing; the loop runs at least as long as in the other cases."""
    yield lambda _number: asyncio.sleep(HEARTBEAT / 10)


@asynccontextmanager
async def bare_thread(_spec: Spec) -> AsyncIterator[Call]:
    """Call an empty function in a thread of asyncio."""
    yield lambda _number: asyncio.to_thread(int)


@asynccontextmanager
async def sends(spec: Spec) -> AsyncIterator[Call]:
    """Send with an endpoint that does nothing else, as in a web application."""
    endpoint = AsyncEndpoint(configuration(spec))
    try:
        yield send_of(endpoint, spec)
    finally:
        await endpoint.close()


@asynccontextmanager
async def sends_and_stores(spec: Spec) -> AsyncIterator[Call]:
    """Send with an endpoint whose satellites run in the same process."""
    async with AsyncEndpoint(configuration(spec)) as endpoint:
        yield send_of(endpoint, spec)


def send_of(endpoint: AsyncEndpoint, spec: Spec) -> Call:
    return lambda number: endpoint.send(spec.destination, "Note", {"number": number}, delay=86_400)


NOTHING: Final = "a loop by itself"
BARE: Final = "asyncio.to_thread"
SEND: Final = "AsyncEndpoint.send"
STORE: Final = "AsyncEndpoint.send beside its satellites"
WAYS: Final = {NOTHING: nothing, BARE: bare_thread, SEND: sends, STORE: sends_and_stores}


@contextmanager
def timed_callbacks(seen: Seen) -> Iterator[None]:
    """Record the time of each callback of every loop in the block, without garbage collection."""
    call, is_over = asyncio.Handle._run, False

    def measured(handle: asyncio.Handle) -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        call(handle)
        if is_over:  # the callback that ended the block: its rest was not a call
            return
        seen.walls.append(time.perf_counter() - wall)
        seen.cpus.append(time.thread_time() - cpu)

    asyncio.Handle._run = measured  # type: ignore[method-assign]  # of this program alone
    gc.disable()
    try:
        yield
    finally:
        is_over = True
        gc.enable()
        asyncio.Handle._run = call  # type: ignore[method-assign]  # as above


@contextmanager
def logged_callbacks(seen: Seen) -> Iterator[None]:
    """Record the slow callbacks in the running loop's log during the block."""
    loop, logger = asyncio.get_running_loop(), logging.getLogger("asyncio")

    def note(record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and "took" in record.msg:
            seen.logged.append(float(record.args[1]))  # type: ignore[arg-type]  # it is one
        return False

    logger.addFilter(note)
    slow, loop.slow_callback_duration = loop.slow_callback_duration, SLOW
    loop.set_debug(True)
    try:
        yield
    finally:
        loop.set_debug(False)
        loop.slow_callback_duration = slow
        logger.removeFilter(note)


async def heartbeats(call: Call, count: int) -> list[float]:
    """Return how late each of *count* heartbeats was, sorted, while calls are made."""
    late: list[float] = []

    async def beat() -> None:
        for _ in range(count):
            asked = time.perf_counter()
            await asyncio.sleep(HEARTBEAT)
            late.append(time.perf_counter() - asked - HEARTBEAT)

    beating, number = asyncio.create_task(beat()), 0
    while not beating.done():
        await call(number)
        number += 1
    await beating
    return sorted(late)


@contextmanager
def thread_that_computes(switch_interval: float) -> Iterator[None]:
    """Run a thread that computes during the block, with this switch interval in seconds."""
    is_over, usual = threading.Event(), sys.getswitchinterval()

    def compute() -> None:
        while not is_over.is_set():
            sum(range(1_000))

    thread = threading.Thread(target=compute)
    sys.setswitchinterval(switch_interval)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(usual)


PLACES: Final[dict[str, Beside]] = {
    "": nullcontext,
    " beside a busy thread": partial(thread_that_computes, 0.005),
    " beside a busy thread, switch interval 1 ms": partial(thread_that_computes, 0.001),
}


def report_callbacks(rounds: list[SeenByWay], report: Report) -> None:
    for way in (BARE, SEND, STORE):
        walls = [1_000 * max(each[way].walls) for each in rounds]
        cpu = 1_000 * max(max(each[way].cpus) for each in rounds)
        beside = (
            f"of a processor at most {cpu:.2f}; the longest of each round: {listed(walls)}; "
            f"{len(rounds)} rounds of {len(rounds[0][way].walls):,}"
        )
        figure = f"longest callback, {way}"
        if way == SEND:
            report.bar(figure, max(walls), 1, at_most=True, unit=" ms", beside=beside)
        else:
            report.fact(figure, max(walls), " ms", beside)
    for way in (BARE, SEND, STORE):
        longest = [1_000 * max(each[way].logged, default=0) for each in rounds]
        count = sum(len(each[way].logged) for each in rounds)
        report.fact(
            f"callbacks over 1 ms by the log in debug mode, {way}",
            count,
            beside=f"the longest of each round: {listed(longest)} ms",
        )


def listed(values: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in values)


def report_heartbeats(rounds: list[SeenByWay], report: Report) -> None:
    for where in PLACES:
        for way in WAYS:
            lates = [each[way].late[where] for each in rounds]
            p99 = [1_000 * late[len(late) * 99 // 100] for late in lates]
            beside = f"spread {apart(p99):.0%}, {len(lates)} rounds of {len(lates[0]):,}"
            figure = f"heartbeat{where}, p99, {way}"
            if way == SEND:
                report.bar(figure, median(p99), 10, at_most=True, unit=" ms", beside=beside)
            else:
                report.fact(figure, median(p99), " ms", beside)


if __name__ == "__main__":
    main()
