"""Gain of a second process: ``timeoutmgr run --processes 2`` beside 1, on the same drain.

Broker, database and consumer share the cores with them. If the kernel allows it, each process is
also limited to a part of a core, as on a slower machine with many cores: then cores are free.
"""

import os
from functools import partial

from harness import pending, share
from harness.cli import running as run_cli
from harness.destination import Destination
from harness.figures import Sample, interleave, ratio
from harness.messages import SECOND, micros
from harness.report import Report, options, parsed
from harness.servers import servers
from harness.workers import Spec, installed

STARTED = 12
"""Seconds until all messages are loaded and the processes consume; a quick run loads less."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--part", type=float, default=0.1, help="of a core, for each (0.1)")
    given = parsed(parser, count=20_000, quick=2_000)
    parts = [None, given.part] if share.can_share() else [None]
    if given.quick:
        parts = parts[-1:]
    started = STARTED // 2 if given.quick else STARTED
    with (
        servers("postgres", "rabbitmq") as running,
        installed(running["rabbitmq"], running["postgres"]) as spec,
    ):
        report = Report("Processes", {"messages": given.count, **running.settings})
        cases = {
            named(number, part): partial(drain, spec, given.count, number, part, started)
            for part in parts
            for number in (1, 2)
        }
        samples = interleave(cases, given.rounds)
    report.runs(samples)
    for part in parts:
        one, two = (samples[named(number, part)] for number in (1, 2))
        figure = f"two processes ÷ one{held(part)}"
        if part is None:
            report.fact(f"{figure}, {os.cpu_count()} cores for all", ratio(two, one), " times")
        else:
            report.faster(figure, two, one, 1.7)
    if not share.can_share():
        report.notes.append("No control groups: what free cores would bring is not measured.")
    report.give(given)


def named(number: int, part: float | None) -> str:
    return f"{number} process{'es' if number > 1 else ''}{held(part)}"


def held(part: float | None) -> str:
    return "" if part is None else f", each {part:g} of a core"


def drain(spec: Spec, count: int, processes: int, part: float | None, started: int) -> Sample:
    """Return the rate from the common due instant until the last arrival."""
    pending.clear(spec.persistence)
    due = micros() + started * SECOND
    waiting = pending.Pending(
        endpoint=spec.name, destination=spec.destination, count=count, due=due
    )
    pending.load(spec.persistence, waiting)
    with (
        Destination(spec.transport, spec.destination, count) as destination,
        run_cli(spec, processes=processes, part=part),
    ):
        assert micros() < due, "the start took too long"
        arrivals = destination.arrivals()
    return Sample(count, (arrivals.last - due) / SECOND)


if __name__ == "__main__":
    main()
