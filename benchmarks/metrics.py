"""Cost of metrics: processor time of a dispatched timeout with and without metrics.

With metrics each message is observed, the store and the queues are sampled, and the page is served,
as by ``timeoutmgr run --metrics-address``. Both kinds of dispatch are measured: by a broker, and in
a database. The cost of each call on a hot path is measured first; ``--only calls`` stops there.
"""

import gc
import timeit
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from time import process_time

from harness.figures import interleave
from harness.report import Report, options, parsed
from harness.runs import dispatched
from harness.servers import servers
from harness.workers import installed

from timeoutmgr.metrics.memory import CountMemory
from timeoutmgr.metrics.recorder import Recorder
from timeoutmgr.telemetry import Counters, Operation, during_of

CALLS = 2_000
LOOPS = 600
"""Number of short loops, of which the fastest counts: other programs interrupt long loops. The
loops of all calls take turns, so that a busy second of the machine affects all calls."""
LONGEST = 0.3
"""Maximum microseconds of a call."""
WHOLE = "operation, with metrics"


def calls() -> Mapping[str, Callable[[], object]]:
    """Return each call of a hot path. Messages are observed in batches of a hundred."""
    memory = CountMemory.create(1)
    recorder = Recorder(memory, memory.sections[0], Counters())
    dues = [10_000_000 - number * 1_000 for number in range(100)]
    queues = ["billing", "shipping"] * 50
    batch = [("billing", due) for due in dues]
    mixed = [(("billing", "shipping")[number % 2], due) for number, due in enumerate(dues)]
    on, off = recorder.during, during_of(Counters())
    handler = Operation.HANDLER

    def observed() -> None:
        with on(handler, ()):
            pass

    def unobserved() -> None:
        with off(handler, ()):
            pass

    return {
        "count": lambda: recorder.count("handled"),
        "count by label, each of 100": lambda: recorder.count_each("timeouts_stored", queues),
        "value": lambda: recorder.value("clock_offset_seconds", 0.1),
        "duration": lambda: recorder.took(handler, 1_200),
        "lateness, each of 100": lambda: recorder.late(10_000_000, batch),
        "lateness, each of 100 in turn to two": lambda: recorder.late(10_000_000, mixed),
        "operation, without metrics": unobserved,
        WHOLE: observed,
    }


def measure_calls(report: Report) -> None:
    every = calls()
    best = dict.fromkeys(every, inf)
    gc.collect()
    for _ in range(LOOPS):
        for name, call in every.items():
            number = 100 if "of 100" in name else 1
            loop = timeit.timeit(call, timer=process_time, number=CALLS // number)
            best[name] = min(best[name], loop / CALLS * 1e6)
    for name, call in every.items():
        if name == WHOLE:  # two readings of the clock around it, so that nothing is claimed
            report.fact(f"call: {name}", best[name], unit=" us")
        else:
            report.bar(
                f"call: {name}", best[name], LONGEST, at_most=True, unit=" us", beside=_kept(call)
            )


def _kept(call: Callable[[], object]) -> str:
    """Return how many bytes of memory a thousand calls keep."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(1_000):
        call()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return f"{kept} bytes kept by 1,000"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=["calls", "broker", "database"], help="one part")
    given = parsed(parser, count=20_000, quick=2_000)
    if given.only == "calls":
        report = Report("Metrics", {"calls": CALLS})
        measure_calls(report)
        report.give(given)
        return
    with servers("postgres", "rabbitmq") as running:
        settings = {"messages": given.count, "body": "512 B", **running.settings}
        report = Report("Metrics", settings)
        measure_calls(report)
        ways = {"RabbitMQ + PostgreSQL": running["rabbitmq"], "all in PostgreSQL": None}
        for name, broker in ways.items():
            if given.only == ("database" if broker else "broker"):
                continue
            database = running.another("postgres")
            with installed(broker or database, database) as spec:
                samples = interleave(
                    {
                        f"{name}, without metrics": partial(dispatched, spec, given.count),
                        f"{name}, with metrics": partial(
                            dispatched, replace(spec, observed=True), given.count
                        ),
                    },
                    given.rounds,
                )
            report.runs(samples)
            without, with_metrics = samples.values()
            report.cheaper(f"{name}: with metrics ÷ without", with_metrics, without, 1.02)
    report.give(given)


if __name__ == "__main__":
    main()
