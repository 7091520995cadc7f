"""Time for the start of a process: until a command runs, and until it consumes its queues.

Beside it is the unavoidable part: Python itself, and the imports of the required libraries.
"""

import subprocess
import sys
import time
from functools import partial
from statistics import median

from harness.cli import running as running_cli
from harness.figures import Sample, interleave, spread
from harness.report import Report, options, parsed
from harness.servers import servers
from harness.workers import Spec, installed

LIBRARIES = "import amqp, apscheduler.schedulers.background, kombu, psycopg, sqlalchemy"


def main() -> None:
    given = parsed(options(__doc__), count=1, quick=1)
    with (
        servers("postgres", "rabbitmq") as running,
        installed(running["rabbitmq"], running["postgres"]) as spec,
    ):
        report = Report("Starting", running.settings)
        samples = interleave(
            {
                "python by itself": partial(command, "-c", "pass"),
                "bare imports of the libraries": partial(command, "-c", LIBRARIES),
                "import timeoutmgr": partial(command, "-c", "import timeoutmgr"),
                "timeoutmgr --help": partial(command, "-m", "timeoutmgr", "--help"),
                "timeoutmgr run, until it consumes": partial(consuming, spec),
            },
            2 * given.rounds + 1,
        )
    for name, runs in samples.items():
        took = median(sample.seconds for sample in runs)
        report.fact(name, 1000 * took, " ms", beside=f"spread {spread(runs):.0%}")
    report.give(given)


def command(*arguments: str) -> Sample:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return Sample(1, time.perf_counter() - began)


def consuming(spec: Spec) -> Sample:
    """Return the time from the start of the process until both queues have a consumer."""
    began = time.perf_counter()
    with running_cli(spec):
        return Sample(1, time.perf_counter() - began)


if __name__ == "__main__":
    main()
