"""``timeoutmgr run``: its start, its output and its end."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.programs import PATIENCE, Folder, wait_until
from timeoutmgr.cli.run import Child
from timeoutmgr.testing.faultproxy import FaultProxy

FETCH = "Repeated failures when fetching timeouts from storage, endpoint will be terminated."
STORE = "Repeated failures when storing timeouts, endpoint will be terminated."


def read_health(path: Path) -> dict[str, Any]:
    """The health document, or None before the first write; a reader never sees a part of it."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    document: dict[str, Any] = json.loads(text)
    return document


def lose_the_storage(folder: Folder) -> None:
    connection = sqlite3.connect(folder.path / "timeoutmgr.db", timeout=20)
    with connection:
        connection.execute("DROP TABLE timeoutmgr_timeout_keys")
        connection.execute("DROP TABLE timeoutmgr_timeouts")
    connection.close()


@pytest.mark.slow
def test_a_signal_ends_a_run_while_database_and_queues_hang(
    folder: Folder, postgres_url: str, unique: str
) -> None:
    with FaultProxy.before(postgres_url) as proxy:
        for part in ("TRANSPORT", "PERSISTENCE"):
            folder.variables[f"TIMEOUTMGR_{part}"] = proxy.url(postgres_url)
            folder.variables[f"TIMEOUTMGR_{part}_OPTIONS_PREFIX"] = f"{unique}_"
        program = folder.start("run")
        program.wait_for(f"endpoint {folder.endpoint} runs")
        proxy.blackhole()

        code = program.stop(signal.SIGTERM)

    assert code == 0
    assert any("which hangs" in line for line in program.err)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_run_cleanly_with_exit_code_0(
    folder: Folder, number: signal.Signals
) -> None:
    program = folder.start("run")
    program.wait_for(f"endpoint {folder.endpoint} runs")

    code = program.stop(number)

    assert code == 0
    assert f"endpoint {folder.endpoint} is stopped" in program.err[-1]
    assert "Traceback" not in "\n".join(program.err)


def test_an_app_handles_a_message_that_the_shell_sends(folder: Folder) -> None:
    program = folder.start("run", "--app", "app:config")
    program.wait_for("runs")

    sent = folder.run("send", folder.endpoint, "Hello", '{"n": 7}', "--delay", "100ms")

    assert sent.returncode == 0, sent.stderr
    program.wait_for("handled {'n': 7}")
    assert program.stop() == 0


def test_the_health_file_is_rewritten_by_a_run_and_removed_at_its_end(
    folder: Folder,
) -> None:
    path = folder.path / "health.json"
    program = folder.start("run", "--health-file", str(path))
    wait_until(lambda: bool(read_health(path)), "a health file")
    first = read_health(path)

    wait_until(lambda: read_health(path)["time"] != first["time"], "another health file")

    assert first["pid"] == program.process.pid
    assert first["endpoint"] == folder.endpoint
    assert first["snapshot"]["breaker_Broker"] == "disarmed"
    assert program.stop() == 0
    assert list(folder.path.glob("*health*")) == []


def test_a_critical_error_ends_a_run_with_70_and_its_sentence_as_the_last_line(
    folder: Folder,
) -> None:
    program = folder.start("run", "--app", "app:config")
    program.wait_for("runs")
    lose_the_storage(folder)
    folder.run("send", folder.endpoint, "Hello", "{}", "--delay", "1h")

    code = program.wait()

    assert code == 70
    assert program.err[-1] in (FETCH, STORE)


def test_with_critical_error_action_log_a_run_continues_and_logs_a_second_line(
    folder: Folder,
) -> None:
    program = folder.start("run", "--app", "app:logging")
    program.wait_for("runs")
    lose_the_storage(folder)
    folder.run("send", folder.endpoint, "Hello", "{}", "--delay", "1h")

    program.wait_for("endpoint will be terminated.")
    program.wait_for("critical_error_action is 'log': the endpoint is NOT terminated, it goes on")

    assert program.stop() == 0


def test_two_processes_are_started_again_when_killed_and_stopped_together(
    folder: Folder,
) -> None:
    path = folder.path / "health.json"
    program = folder.start("run", "--processes", "2", "--health-file", str(path))

    def pids() -> list[int]:
        found = read_health(path).get("processes", [])
        return [each["pid"] for each in found if each["pid"] and each["health"]]

    wait_until(lambda: len(pids()) == 2, "two processes")
    first, second = pids()

    os.kill(first, signal.SIGKILL)

    program.wait_for("restarts process 1 in 1 s: ended by signal 9")
    wait_until(lambda: len(pids()) == 2 and first not in pids(), "another process")
    assert second in pids()
    assert read_health(path)["processes"][0]["restarts"] == 1
    children = pids()
    assert program.stop() == 0
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
    assert list(folder.path.glob("*health*")) == []


def test_a_process_that_cannot_be_started_now_is_started_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("timeoutmgr.cli.run._FIRST_PAUSE", 0.0)
    child = Child(1, [sys.executable, "-c", ""], None)

    def refuse(*_given: object, **_more: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        child.start_when_due()

    assert not child.is_running
    assert "restarts process 1 in 0 s: cannot be started" in caplog.text
    child.start_when_due()
    assert child.is_running
    assert child.wait(PATIENCE)


def test_the_critical_sentence_of_a_child_that_must_be_killed_is_kept() -> None:
    reports = 'import os, signal, sys; os.write(int(sys.argv[3]), b\'{"critical": "no disk"}\')'
    child = Child(1, [sys.executable, "-c", f"{reports}; signal.pause()"], None)
    child.start_when_due()
    assert child._line is not None
    assert select.select([child._line], [], [], PATIENCE)[0]

    child.kill()

    assert child.critical == "no disk"


def test_a_health_file_that_cannot_be_removed_stops_no_supervisor(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.write_text("")  # as little can be removed from a disk that is read-only
    child = Child(1, [sys.executable, "-c", ""], folder / "health.json")

    child.start_when_due()

    assert child.wait(PATIENCE)
    assert not child.is_running


def test_a_critical_error_in_either_of_two_processes_stops_all_and_is_the_last_line(
    folder: Folder,
) -> None:
    program = folder.start("run", "--app", "app:config", "--processes", "2")
    program.wait_for(f"endpoint {folder.endpoint} runs", times=2)
    lose_the_storage(folder)
    folder.run("send", folder.endpoint, "Hello", "{}", "--delay", "1h")

    code = program.wait()

    assert code == 70
    assert program.err[-1] in (FETCH, STORE)


def test_children_stop_when_their_parent_is_killed(folder: Folder) -> None:
    path = folder.path / "health.json"
    program = folder.start("run", "--processes", "2", "--health-file", str(path))
    program.wait_for(f"endpoint {folder.endpoint} runs", times=2)
    wait_until(lambda: bool(read_health(path)), "a health file")
    children = [each["pid"] for each in read_health(path)["processes"]]

    program.process.kill()

    program.wait_for(f"endpoint {folder.endpoint} is stopped", times=2)
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "the children's end"
    )


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_health_file_in_no_folder_is_refused_before_the_start(
    folder: Folder, processes: str
) -> None:
    ended = folder.run("run", "--processes", processes, "--health-file", "nowhere/health.json")

    assert (ended.returncode, ended.stderr.count("there is no folder")) == (2, 1)
    assert "supervisor" not in ended.stderr
    assert not (folder.path / "timeoutmgr.db").exists()


def test_wrong_settings_end_a_run_at_once_with_any_number_of_processes(folder: Folder) -> None:
    folder.variables["TIMEOUTMGR_CONCURENCY"] = "2"

    for processes in ("1", "2"):
        ended = folder.run("run", "--processes", processes)

        assert ended.returncode == 4
        error, more = ended.stderr.splitlines()
        assert more.startswith("help: ")
        assert "did you mean 'TIMEOUTMGR_CONCURRENCY'?" in error


def test_an_app_beside_a_settings_file_is_refused(
    folder: Folder,
) -> None:
    done = folder.run("status", "--app", "app:config", "--config", "sales.toml")

    assert done.returncode == 4
    assert "--app app:config and --config sales.toml are both given" in done.stderr


def test_a_missing_app_is_named(folder: Folder) -> None:
    no_module = folder.run("run", "--app", "nowhere:config")
    no_attribute = folder.run("run", "--app", "app:nothing")
    no_config = folder.run("run", "--app", "app:hello.__name__")

    assert [each.returncode for each in (no_module, no_attribute, no_config)] == [4, 4, 4]
    assert "there is no module 'nowhere'" in no_module.stderr
    assert "has no attribute 'nothing'" in no_attribute.stderr
    assert "expected an EndpointConfiguration" in no_config.stderr
