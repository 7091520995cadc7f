"""``run --metrics-address``: metrics and probes of real processes, and systemd's socket."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.programs import PATIENCE, Folder, Program, wait_until
from timeoutmgr.testing.faultproxy import FaultProxy

ANY_PORT = "127.0.0.1:0"
SLOW = """
from pathlib import Path
import threading

@config.handler("Slow")
def slow(message, context):
    print("slow begins", flush=True)
    while not Path("go").exists():
        threading.Event().wait(0.01)
    print("slow ends", flush=True)
"""


KILLS_A_PUMP = """
import ctypes
import threading

config.critical_error_action = "log"

@config.handler("Kill")
def kill(message, context):
    [pump] = [one for one in threading.enumerate() if one.name.endswith(".TimeoutsDispatcher-0")]
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(pump.ident), ctypes.py_object(SystemExit)
    )
"""
STORED_APART = """
from timeoutmgr.metrics import probes, samples

samples.EVERY, probes.ANSWER = 0.2, 1.0
config.critical_error_action = "log"
config.use_persistence("{url}")
"""


def address(program: Program) -> str:
    """Return the URL that *program* prints, without its path."""
    program.wait_for("shows its metrics at")
    [line] = [line for line in program.err if "shows its metrics at" in line]
    [found] = re.findall(r"(http://\S+)/metrics", line)
    return str(found)


def probe(url: str) -> tuple[int, str]:
    """Return status and text of a probe."""
    try:
        with urlopen(Request(url), timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def sample(url: str, name: str) -> float | None:
    """Return the value of a metric that has no label but the endpoint."""
    for family in text_string_to_metric_families(probe(f"{url}/metrics")[1]):
        for found in family.samples:
            if found.name == name:
                return float(found.value)
    return None


def test_metrics_and_probes_of_one_process(folder: Folder) -> None:
    program = folder.start("run", "--app", "app:config", "--metrics-address", ANY_PORT)
    url = address(program)
    wait_until(lambda: probe(f"{url}/readyz")[0] == 200, "the endpoint is ready")
    folder.run("send", folder.endpoint, "Hello", "1", "--delay", "100ms")
    program.wait_for("handled 1")

    assert probe(f"{url}/livez") == probe(f"{url}/startupz") == (200, "ok\n")
    assert probe(f"{url}/secret")[0] == 404
    wait_until(lambda: sample(url, "timeoutmgr_handled_total") == 1, "the message is counted")
    assert sample(url, "timeoutmgr_lateness_seconds_count") == 1  # of the one destination
    assert sample(url, "timeoutmgr_timeouts_early_total") == 0
    assert sample(url, "timeoutmgr_oldest_due_age_seconds") == 0
    assert program.stop() == 0


def test_a_variable_with_the_metrics_address_has_the_supervisor_alone_serve(folder: Folder) -> None:
    folder.variables["TIMEOUTMGR_CLI_RUN_METRICS_ADDRESS"] = ANY_PORT
    program = folder.start("run", "--app", "app:config", "--processes", "2")
    program.wait_for(f"endpoint {folder.endpoint} runs", times=2)

    assert sum("shows its metrics at" in line for line in program.err) == 1
    assert program.stop() == 0


@pytest.mark.slow
def test_a_killed_child_neither_loses_nor_repeats_a_count(folder: Folder) -> None:
    health = folder.path / "health.json"
    program = folder.start(
        *("run", "--app", "app:config", "--processes", "2"),
        *("--metrics-address", ANY_PORT, "--health-file", str(health)),
    )
    url = address(program)
    program.wait_for(f"endpoint {folder.endpoint} runs", times=2)
    sent = 0

    def send(number: int) -> None:
        nonlocal sent
        for _ in range(number):
            folder.run("send", folder.endpoint, "Hello", str(sent), "--delay", "10ms")
            sent += 1
        program.wait_for("handled ", times=sent)
        wait_until(lambda: sample(url, "timeoutmgr_handled_total") == sent, f"{sent} are counted")

    def children() -> list[int]:
        try:
            found = json.loads(health.read_text())["processes"]
        except FileNotFoundError:
            return []
        return [child["pid"] for child in found if child["pid"]]

    send(4)
    wait_until(lambda: len(children()) == 2, "two processes")
    for pid in children():
        os.kill(pid, signal.SIGKILL)
    program.wait_for("supervisor restarts process", times=2)

    assert sample(url, "timeoutmgr_handled_total") == 4
    assert sample(url, "timeoutmgr_timeouts_dispatched_total") == 4
    assert sample(url, "timeoutmgr_lateness_seconds_count") == 4
    assert sample(url, "timeoutmgr_processes") == 0
    program.wait_for(f"endpoint {folder.endpoint} runs", times=4)
    send(3)
    assert sample(url, "timeoutmgr_timeouts_dispatched_total") == 7
    assert program.stop() == 0


def test_a_drain_is_not_ready_first_and_ends_what_is_in_flight(folder: Folder) -> None:
    with (folder.path / "app.py").open("a") as app:
        app.write(SLOW)
    program = folder.start("run", "--app", "app:config", "--metrics-address", ANY_PORT)
    url = address(program)
    wait_until(lambda: probe(f"{url}/readyz")[0] == 200, "the endpoint is ready")
    folder.run("send", folder.endpoint, "Slow", "1", "--delay", "10ms")
    program.wait_for("slow begins")

    program.process.send_signal(signal.SIGTERM)
    wait_until(lambda: probe(f"{url}/readyz")[0] == 503, "the endpoint is not ready")

    assert probe(f"{url}/readyz")[1] == "process 1: stopping\n"
    assert probe(f"{url}/livez")[0] == 200
    folder.run("send", folder.endpoint, "Hello", "2", "--delay", "10ms")
    (folder.path / "go").touch()
    assert program.wait() == 0
    assert [line for line in program.out if "slow" in line] == ["slow begins", "slow ends"]
    assert "handled 2" not in program.out


def test_a_stopped_child_hangs_and_the_probe_names_it(folder: Folder) -> None:
    health = folder.path / "health.json"
    program = folder.start(
        *("run", "--processes", "2", "--metrics-address", ANY_PORT),
        *("--health-file", str(health)),
    )
    url = address(program)
    wait_until(lambda: probe(f"{url}/readyz")[0] == 200, "both processes are ready")
    second = json.loads(health.read_text())["processes"][1]["pid"]

    os.kill(second, signal.SIGSTOP)
    try:
        wait_until(lambda: probe(f"{url}/livez")[0] == 503, "the process hangs")
        said = probe(f"{url}/livez")[1]
    finally:
        os.kill(second, signal.SIGCONT)

    assert said.startswith("process 2: its watchdog last ran ")
    wait_until(lambda: probe(f"{url}/livez")[0] == 200, "the process goes on")
    assert program.stop() == 0


def test_a_pump_that_ends_is_not_alive_although_the_watchdog_runs(folder: Folder) -> None:
    with (folder.path / "app.py").open("a") as app:
        app.write(KILLS_A_PUMP)
    program = folder.start("run", "--app", "app:config", "--metrics-address", ANY_PORT)
    url = address(program)
    wait_until(lambda: probe(f"{url}/readyz")[0] == 200, "the endpoint is ready")

    folder.run("send", folder.endpoint, "Kill", "1")
    wait_until(lambda: probe(f"{url}/livez")[0] == 503, "the probe hears of the pump")

    assert probe(f"{url}/livez")[1] == "process 1: 1 of its pumps ended, and none starts again\n"
    assert program.stop() == 0


def test_a_store_that_is_away_is_named_by_the_probe_and_restarts_nothing(
    folder: Folder, postgres_url: str
) -> None:
    with FaultProxy.before(postgres_url) as database:
        with (folder.path / "app.py").open("a") as app:
            app.write(STORED_APART.format(url=database.url(postgres_url)))
        folder.run("install", "--app", "app:config")
        program = folder.start("run", "--app", "app:config", "--metrics-address", ANY_PORT)
        url = address(program)
        wait_until(lambda: probe(f"{url}/readyz")[0] == 200, "the endpoint is ready")

        database.refuse()
        database.reset()
        missed = "process 1: the store has not answered for 1 s"
        wait_until(lambda: missed in probe(f"{url}/readyz")[1], "the store is missed")
        assert probe(f"{url}/readyz")[0] == 503
        assert probe(f"{url}/livez")[0] == 200
        database.heal()
        wait_until(lambda: probe(f"{url}/readyz")[0] == 200, "the store answers again")
        assert program.stop() == 0


def test_an_address_that_is_in_use_ends_the_run_with_the_remedy(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ended = folder.run("run", "--metrics-address", f"127.0.0.1:{port}")

    assert ended.returncode == 4
    assert f"--metrics-address 127.0.0.1:{port} cannot be used" in ended.stderr


@pytest.mark.parametrize("text", ["9464", "localhost:", ":9464", "localhost:http", "[::1]:70000"])
def test_an_address_without_host_or_port_is_refused(folder: Folder, text: str) -> None:
    ended = folder.run("run", "--metrics-address", text)

    assert ended.returncode == 2
    assert "is not an address and a port, such as 127.0.0.1:9464" in ended.stderr


def test_an_address_without_the_extra_names_the_remedy(folder: Folder) -> None:
    without = "import sys\nsys.modules['prometheus_client'] = None\nfrom app import config\n"
    folder.write("without.py", without)

    program = folder.start("--app", "without:config", "run", "--metrics-address", ANY_PORT)

    assert program.wait() == 4
    assert "pip install 'timeoutmgr[metrics]'" in program.err[-1] + program.err[-2]


# --- systemd's socket --------------------------------------------------------------------------


class Manager:
    """A service manager, as far as a service sees of it."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self.said: list[str] = []

    def wait_for(self, state: str) -> None:
        """Read until *state* comes."""
        while state not in self.said:
            self.said.append(self._line.recv(100).decode())


@contextmanager
def managed(folder: Folder, name: str) -> Iterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(name.replace("@", "\0") if name.startswith("@") else name)
        line.settimeout(PATIENCE)
        folder.variables["NOTIFY_SOCKET"] = name
        yield Manager(line)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_service_manager_hears_of_start_watchdog_and_stop(
    folder: Folder, tmp_path: Path, processes: str
) -> None:
    with managed(folder, str(tmp_path / "notify")) as manager:
        program = folder.start("run", "--processes", processes)
        manager.wait_for("READY=1")
        program.wait_for("runs", times=int(processes))
        manager.said.clear()
        manager.wait_for("WATCHDOG=1")
        assert program.stop() == 0
        manager.wait_for("STOPPING=1")

    assert manager.said[-1] == "STOPPING=1"


def test_an_abstract_socket_is_reached(folder: Folder, unique: str) -> None:
    with managed(folder, f"@{unique}") as manager:
        program = folder.start("run")
        manager.wait_for("READY=1")

    # The manager is away now, which stops nothing.
    assert program.stop() == 0
    assert any("could not notify the service manager" in line for line in program.err)


def test_a_run_that_nobody_observes_imports_nothing_of_it(folder: Folder) -> None:
    with (folder.path / "app.py").open("a") as app:
        app.write(
            "\n@config.handler('Modules')\ndef modules(message, context):\n"
            "    import sys\n"
            "    print('modules', [name for name in sys.modules if name.startswith("
            "('prometheus', 'timeoutmgr.metrics', 'opentelemetry', 'http.server'))], flush=True)\n"
        )
    program = folder.start("run", "--app", "app:config")
    program.wait_for("runs")
    folder.run("send", folder.endpoint, "Modules", "1")

    program.wait_for("modules []")
    assert program.stop() == 0
