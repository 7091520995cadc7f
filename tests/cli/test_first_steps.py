"""A first step that goes wrong ends in a single sentence that names the remedy."""

from __future__ import annotations

import pytest

from tests.cli.programs import Folder
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.endpoint.configuration import persistence_from_url, transport_from_url
from timeoutmgr.errors import ConfigurationError, UnknownPart
from timeoutmgr.satellites import TimeoutManager


@pytest.mark.parametrize(
    "url", ["amqp://guest:wrong@127.0.0.1//", "amqp://guest:guest@127.0.0.1/no-such-vhost"]
)
def test_a_wrong_password_or_virtual_host_is_a_wrong_configuration(
    folder: Folder, rabbitmq_url: str, url: str
) -> None:
    assert "127.0.0.1" in rabbitmq_url
    folder.variables |= {
        "TIMEOUTMGR_TRANSPORT": url,
        "TIMEOUTMGR_PERSISTENCE": f"sqlite:///{folder.path / 'store.db'}",
    }

    ended = folder.run("retry", "--all")

    assert ended.returncode == 4, ended.stderr
    assert "again later" not in ended.stderr


def test_a_broker_that_is_away_is_unavailable(folder: Folder) -> None:
    folder.variables |= {
        "TIMEOUTMGR_TRANSPORT": "amqp://guest:guest@127.0.0.1:1//",
        "TIMEOUTMGR_PERSISTENCE": f"sqlite:///{folder.path / 'store.db'}",
    }

    assert folder.run("retry", "--all").returncode == 5


def test_an_error_in_the_app_is_shown_where_it_is(folder: Folder) -> None:
    folder.write("broken.py", "def made():\n    return 1 / 0\n\nconfig = made()\n")

    ended = folder.run("list", "--app", "broken:config")

    lines = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert 'broken.py", line 4, in <module>' in lines[1]
    assert "click" not in ended.stderr
    assert lines[-1] == "error: division by zero"


@pytest.mark.parametrize("code", ["", "3", "'no such file'"])
def test_an_exit_of_the_app_is_a_refused_configuration(folder: Folder, code: str) -> None:
    folder.write("ending.py", f"import sys\nsys.exit({code})\n")

    ended = folder.run("list", "--app", "ending:config")
    as_json = folder.run("--json", "list", "--app", "ending:config")

    assert (ended.returncode, as_json.returncode) == (4, 4)
    assert f"called sys.exit({code or None})" in ended.stderr
    assert "ending.py" in ended.stderr
    assert as_json.json()["kind"] == "ConfigurationError"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rabbitmq", "'amqp'"),
        ("rabbitmqs", "'amqps'"),
        ("valkey", "'redis'"),
        ("postgres", "'postgresql'"),
    ],
)
def test_the_name_of_a_broker_or_database_is_refused_with_its_scheme(name: str, meant: str) -> None:
    with pytest.raises(UnknownPart, match=f"did you mean {meant}"):
        transport_from_url(f"{name}://localhost//")


def test_a_database_without_a_persistence_is_refused_with_the_known_databases() -> None:
    with pytest.raises(UnknownPart, match=r"'oracle'; known: .*postgresql"):
        persistence_from_url("oracle://localhost/x")


def test_a_missing_driver_is_reported_with_its_extra(folder: Folder) -> None:
    folder.variables["TIMEOUTMGR_PERSISTENCE"] = "mysql://localhost/x"

    ended = folder.run("list")

    assert ended.returncode == 4
    assert "pip install 'timeoutmgr[mysql]'" in ended.stderr
    assert "begin the URL with mysql+pymysql://" in ended.stderr


def test_a_missing_folder_is_reported(folder: Folder) -> None:
    folder.variables["TIMEOUTMGR_DATA"] = str(folder.path / "none" / "timeoutmgr.db")

    ended = folder.run("install")

    assert ended.returncode == 5
    assert "does its folder exist" in ended.stderr


def test_a_file_that_is_no_database_is_reported_in_one_sentence(folder: Folder) -> None:
    (folder.path / "timeoutmgr.db").write_text("minutes of the meeting " * 99)

    ended = folder.run("install")

    error, *rest = ended.stderr.splitlines()
    assert ended.returncode == 5
    assert error.endswith("cannot be used now: DatabaseError: file is not a database")
    assert len(rest) <= 1, ended.stderr


def test_an_uninstall_before_an_install_names_the_command_and_makes_no_file(
    folder: Folder,
) -> None:
    ended = folder.run("uninstall", "timeout-manager")

    assert ended.returncode == 4
    assert "run `timeoutmgr install`" in ended.stderr
    assert not (folder.path / "timeoutmgr.db").exists()


def test_a_run_logs_nothing_of_the_scheduler(folder: Folder) -> None:
    program = folder.start("run")
    program.wait_for(f"endpoint {folder.endpoint} runs")

    program.stop()

    assert [line for line in program.err if "apscheduler" in line] == []


def test_a_shell_completes_commands_as_the_page_says(folder: Folder) -> None:
    folder.variables |= {
        "_TIMEOUTMGR_COMPLETE": "bash_complete",
        "COMP_WORDS": "timeoutmgr resch",
        "COMP_CWORD": "1",
    }

    assert folder.run().stdout == "plain,reschedule\n"


def test_an_endpoint_of_a_name_and_a_feature_that_is_a_class_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="made of an EndpointConfiguration, got 'sales'"):
        Endpoint("sales")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ConfigurationError, match=r"call it: enable_feature\(TimeoutManager\(\)\)"):
        EndpointConfiguration("sales").enable_feature(TimeoutManager)  # type: ignore[arg-type]  # as above


def test_a_doctor_of_one_file_repeats_no_line(folder: Folder) -> None:
    folder.run("install")

    lines = folder.run("doctor").stdout.splitlines()

    assert len(lines) == len(set(lines))


def test_a_doctor_of_a_broker_speaks_of_no_queue_tables(folder: Folder, rabbitmq_url: str) -> None:
    folder.variables |= {
        "TIMEOUTMGR_TRANSPORT": rabbitmq_url,
        "TIMEOUTMGR_PERSISTENCE": f"sqlite:///{folder.path / 'store.db'}",
    }

    assert "queue tables" not in folder.run("doctor").stdout
