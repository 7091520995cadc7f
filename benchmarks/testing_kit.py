"""The testing kit: time until a kit is ready, time of a delivery, and cost of its pytest plugin.

The plugin's cost is the difference between pytest runs of an empty test with and without it.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median

from harness.figures import Sample, interleave, spread
from harness.report import Report, options, parsed

from timeoutmgr import EndpointConfiguration
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import TimeoutKit

ROOT = Path(__file__).parents[1]
MESSAGES = 1000


def main() -> None:
    given = parsed(options(__doc__), count=200, quick=40)
    report = Report("Testing kit", {})
    for name, use in (("embedded file", embedded), ("RabbitMQ and PostgreSQL", servers)):
        config = use()
        TimeoutKit(config).close()  # imports, and the parts that all kits share
        took = sorted(seconds(partial(TimeoutKit, config)) for _ in range(given.count))
        slow = f"p95 {1000 * took[int(0.95 * len(took))]:.2f}"
        report.bar(f"ready, {name}, ms", 1000 * median(took), 5, at_most=True, beside=slow)
    each = f"{MESSAGES} days, one message a day"
    report.fact("from a send to its handler", 1e6 * each_of_many(), " µs", beside=each)
    without, used = plugin_runs(4 * given.rounds + 1)
    # Compare the least disturbed runs: the difference is a fiftieth of a run.
    cost = min(each.seconds for each in used) - min(each.seconds for each in without)
    apart = f"spread of CPU {spread(without):.0%}, {spread(used):.0%}"
    report.bar("unused plugin, ms of a pytest run", 1000 * cost, 20, at_most=True, beside=apart)
    report.bar("the seven tests of examples/testing, s of CPU", seven(), 1, at_most=True)
    report.give(given)


def plugin_runs(rounds: int) -> tuple[list[Sample], list[Sample]]:
    """Return runs of pytest with an empty test: without the plugin, and with it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_empty.py").write_text("def test_empty():\n    pass\n")
        plugin = partial(pytest_run, folder, "-p", "pytest_timeoutmgr")
        runs = interleave({"without": partial(pytest_run, folder), "with": plugin}, rounds)
    return runs["without"], runs["with"]


def embedded() -> EndpointConfiguration:
    config = EndpointConfiguration("sales")
    config.enable_feature(TimeoutManager())
    config.add_handler("Note", lambda _message, _context: None)
    return config


def servers() -> EndpointConfiguration:
    config = embedded()
    config.use_transport("amqp://localhost//")
    config.use_persistence("postgresql+psycopg://localhost/sales")
    return config


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def each_of_many() -> float:
    """Return the seconds per message from its send to its handler."""
    with TimeoutKit(servers()) as kit:
        began = time.perf_counter()
        for day in range(MESSAGES):
            kit.send_local("Note", day, delay=timedelta(days=day))
        kit.advance(days=MESSAGES)
        return (time.perf_counter() - began) / MESSAGES


def pytest_run(folder: str, *words: str) -> Sample:
    """Return the CPU seconds of a pytest run; wall time would include other load."""
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, "."]
    before = cpu_of_children()
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return Sample(1, cpu_of_children() - before)


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seven() -> float:
    """Return the CPU seconds of the seven tests in pytest, without the package's imports."""
    code = (
        "import sys, time, pytest, timeoutmgr.testing, timeoutmgr.satellites, shop\n"
        "began = time.process_time()\n"
        "assert pytest.main(['-qq', '-p', 'no:cacheprovider', '-c', 'none.ini', '.']) == 0\n"
        "print(time.process_time() - began)"
    )
    with tempfile.TemporaryDirectory() as folder:
        for file in (ROOT / "examples" / "testing").glob("*.py"):
            (Path(folder) / file.name).write_text(file.read_text())
        (Path(folder) / "none.ini").write_text("[pytest]\n")
        environment = {"PYTHONPATH": str(ROOT), "PYTEST_PLUGINS": "pytest_timeoutmgr"}
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, "-c", code]
        ended = subprocess.run(
            command, cwd=folder, env=environment, check=True, capture_output=True, text=True
        )
    return float(ended.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
