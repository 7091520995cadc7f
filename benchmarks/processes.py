"""What a second process adds: ``timeoutmgr run --processes 2`` beside one, on one drain."""

import os

from harness import pending
from harness.cli import running as run_cli
from harness.destination import Destination
from harness.figures import Sample, interleave
from harness.messages import SECOND, micros
from harness.report import Report, options, parsed
from harness.servers import servers
from harness.workers import Spec, installed

STARTED = 15


def main() -> None:
    given = parsed(options(__doc__), count=20_000, quick=4_000)
    with (
        servers("postgres", "rabbitmq") as running,
        installed(running["rabbitmq"], running["postgres"]) as spec,
    ):
        report = Report("Processes", {"messages": given.count, **running.settings})
        samples = interleave(
            {
                "one process": lambda: drain(spec, given.count, 1),
                "two processes": lambda: drain(spec, given.count, 2),
            },
            given.rounds,
        )
    report.runs(samples)
    one, two = samples.values()
    report.faster("two processes ÷ one", two, one, 1.7)
    report.notes.append(
        f"The bar is for free cores: here {os.cpu_count()} are shared with broker and database."
    )
    report.give(given)


def drain(spec: Spec, count: int, processes: int) -> Sample:
    """Return the rate from the due instant of all to the last arrival."""
    pending.clear(spec.persistence)
    due = micros() + STARTED * SECOND
    waiting = pending.Pending(
        endpoint=spec.name, destination=spec.destination, count=count, due=due
    )
    pending.load(spec.persistence, waiting)
    with (
        Destination(spec.transport, spec.destination, count) as destination,
        run_cli(spec, processes=processes),
    ):
        assert micros() < due, "the start took too long"
        arrivals = destination.arrivals()
    return Sample(count, (arrivals.last - due) / SECOND)


if __name__ == "__main__":
    main()
