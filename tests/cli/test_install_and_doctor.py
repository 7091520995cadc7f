"""install creates the tables and queues, and doctor checks them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from sqlalchemy import text
from sqlalchemy.engine import make_url

from tests.cli.programs import Folder, wait_until
from timeoutmgr.cli.exits import Exit
from timeoutmgr.database import Database


def findings(folder: Folder) -> dict[str, dict[str, str]]:
    found = folder.run("--json", "doctor").json()["findings"]
    return {each["check"]: each for each in found}


def test_install_prints_the_parts_and_may_run_twice(folder: Folder) -> None:
    name = folder.endpoint

    first, second = folder.run("--json", "install"), folder.run("--json", "install")

    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    expected = [name, f"{name}.Timeouts", f"{name}.TimeoutsDispatcher", "error"]
    assert sorted(first.json()["queues"]) == sorted(second.json()["queues"]) == sorted(expected)


def test_the_printed_ddl_creates_the_tables_and_printing_creates_nothing(
    folder: Folder,
) -> None:
    ended = folder.run("install", "--sql")

    assert ended.returncode == 0, ended.stderr
    assert not (folder.path / "timeoutmgr.db").exists()
    connection = sqlite3.connect(folder.path / "timeoutmgr.db")
    connection.executescript(ended.stdout)
    connection.close()
    sent = folder.run("send", folder.endpoint, "Hello", "{}")
    assert "there is no queue" in sent.stderr  # so the tables are
    assert folder.run("list").returncode == 0


def test_tables_alone_are_created_without_a_queue(folder: Folder) -> None:
    made = folder.run("--json", "install", "--tables")
    refused = folder.run("install", "--tables", "--sql")

    assert (made.returncode, made.json()["queues"]) == (0, []), made.stderr
    connection = sqlite3.connect(folder.path / "timeoutmgr.db")
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert "timeoutmgr_timeouts" in names
    assert "timeoutmgr_messages" not in names
    assert refused.returncode == 2
    assert "--sql, --tables and --new-marker exclude each other" in refused.stderr


def test_a_healthy_installation_has_no_fail(folder: Folder) -> None:
    folder.run("install")

    ended = folder.run("doctor")

    assert ended.returncode == 0, ended.stdout
    assert [line[:4] for line in ended.stdout.splitlines() if not line.startswith("ok ")] == []
    assert "SQLite lets one write at a time" in ended.stdout


def test_a_missing_installation_is_a_fail_with_its_remedy_and_doctor_creates_nothing(
    folder: Folder,
) -> None:
    ended = folder.run("doctor")

    assert ended.returncode == 1
    assert "-> run `timeoutmgr install`" in ended.stdout
    assert not (folder.path / "timeoutmgr.db").exists()


def test_a_missing_queue_and_a_missing_destination_are_fails(folder: Folder) -> None:
    other = f"{folder.endpoint}x"
    folder.run("install")
    program = folder.start("run")
    program.wait_for("runs")
    folder.variables["TIMEOUTMGR_ENDPOINT"] = other
    folder.run("install")
    del folder.variables["TIMEOUTMGR_ENDPOINT"]
    folder.run("send", other, "Hello", "{}", "--delay", "1h")
    wait_until(lambda: folder.run("--json", "list").json()["total"] == 1, "it is stored")
    program.stop()
    connection = sqlite3.connect(folder.path / "timeoutmgr.db")
    with connection:
        connection.execute("DELETE FROM timeoutmgr_queues WHERE name = ?", (other,))
        connection.execute("DELETE FROM timeoutmgr_queues WHERE name = 'error'")
    connection.close()

    found = findings(folder)

    assert (found["queues"]["level"], found["queues"]["text"]) == ("fail", "missing: error")
    assert found["destinations"]["level"] == "fail"
    assert f"1 pending timeouts are for '{other}'" in found["destinations"]["text"]


def test_a_server_that_is_away_is_a_fail_and_doctor_checks_the_rest(folder: Folder) -> None:
    folder.variables["TIMEOUTMGR_PERSISTENCE"] = (
        "postgresql+psycopg://sales:s3cret@127.0.0.1:1/none?password=s3cret"
    )

    ended = folder.run("doctor", "--verbose")

    assert ended.returncode == 1
    assert "fail  storage:" in ended.stdout
    assert "s3cret" not in ended.stdout + ended.stderr


def test_on_mariadb_the_packet_is_compared_with_the_body_limit(
    folder: Folder, mysql_url: str, unique: str
) -> None:
    folder.variables |= {
        "TIMEOUTMGR_TRANSPORT": mysql_url,
        "TIMEOUTMGR_PERSISTENCE": mysql_url,
        "TIMEOUTMGR_TRANSPORT_OPTIONS_PREFIX": f"{unique}_",
        "TIMEOUTMGR_PERSISTENCE_OPTIONS_PREFIX": f"{unique}_",
    }
    folder.run("install")
    folder.variables["TIMEOUTMGR_LIMITS_MAX_BODY"] = str(2 * 1024**3)

    found = findings(folder)

    assert found["max_allowed_packet"]["level"] == "fail"
    assert "SET GLOBAL max_allowed_packet" in found["max_allowed_packet"]["remedy"]
    password = make_url(mysql_url).password
    assert not password or str(password) not in str(found)


def test_on_mariadb_a_body_needs_twice_its_size_in_a_packet(
    folder: Folder, mysql_url: str, unique: str
) -> None:
    folder.variables |= {
        "TIMEOUTMGR_TRANSPORT": mysql_url,
        "TIMEOUTMGR_PERSISTENCE": mysql_url,
        "TIMEOUTMGR_TRANSPORT_OPTIONS_PREFIX": f"{unique}_",
        "TIMEOUTMGR_PERSISTENCE_OPTIONS_PREFIX": f"{unique}_",
    }
    folder.run("install")
    database = Database(mysql_url)
    with database.read() as connection:
        packet = int(connection.execute(text("SELECT @@max_allowed_packet")).scalar_one())
    database.dispose()
    mebibyte, levels = 1024 * 1024, []

    for max_body in (packet // 2 - mebibyte, packet // 2):
        folder.variables["TIMEOUTMGR_LIMITS_MAX_BODY"] = str(max_body)
        levels.append(findings(folder)["max_allowed_packet"]["level"])

    assert levels == ["ok", "fail"]


def test_the_server_accepts_the_packet_size_that_the_doctor_asks_for(
    folder: Folder, mysql_url: str, unique: str
) -> None:
    folder.variables |= {
        "TIMEOUTMGR_TRANSPORT": mysql_url,
        "TIMEOUTMGR_PERSISTENCE": mysql_url,
        "TIMEOUTMGR_TRANSPORT_OPTIONS_PREFIX": f"{unique}_",
        "TIMEOUTMGR_PERSISTENCE_OPTIONS_PREFIX": f"{unique}_",
        "TIMEOUTMGR_LIMITS_MAX_BODY": "100000001",
    }
    folder.run("install")

    found = findings(folder)["max_allowed_packet"]

    need = int(found["text"].split()[-1])
    assert f"max_allowed_packet = {need} " in found["remedy"]
    assert need > 2 * 100_000_001
    assert need % 1024 == 0


def test_doctor_connects_to_rabbitmq_and_postgresql(
    folder: Folder, rabbitmq_url: str, postgres_url: str, unique: str
) -> None:
    folder.variables |= {
        "TIMEOUTMGR_TRANSPORT": rabbitmq_url,
        "TIMEOUTMGR_PERSISTENCE": postgres_url,
        "TIMEOUTMGR_PERSISTENCE_OPTIONS_PREFIX": f"{unique}_",
    }
    installed = folder.run("install")

    found = findings(folder)

    assert installed.returncode == 0, installed.stderr
    assert {each["level"] for each in found.values()} == {"ok"}
    assert {"transport", "storage", "storage tables", "queues", "clock", "destinations"} <= set(
        found
    )


def test_behind_a_pooler_that_shares_sessions_nothing_is_installed_and_doctor_fails(
    folder: Folder, pooler: Callable[[str], str], unique: str
) -> None:
    url = pooler("transaction")
    folder.variables |= {
        "TIMEOUTMGR_TRANSPORT": url,
        "TIMEOUTMGR_PERSISTENCE": url,
        "TIMEOUTMGR_TRANSPORT_OPTIONS_PREFIX": f"{unique}_",
        "TIMEOUTMGR_PERSISTENCE_OPTIONS_PREFIX": f"{unique}_",
    }

    installed = folder.run("install")
    found = findings(folder)

    assert installed.returncode == Exit.CONFIGURATION
    assert 'database.pooler = "session"' in installed.stderr
    assert (found["transport"]["level"], found["storage"]["level"]) == ("fail", "fail")
    assert "pooler" in found["transport"]["text"]


def test_on_postgresql_settings_that_break_promises_are_refused_and_doctor_fails(
    folder: Folder, postgres_url: str, unique: str
) -> None:
    folder.variables |= {
        "TIMEOUTMGR_TRANSPORT": postgres_url,
        "TIMEOUTMGR_PERSISTENCE": postgres_url,
        "TIMEOUTMGR_TRANSPORT_OPTIONS_PREFIX": f"{unique}_",
        "TIMEOUTMGR_PERSISTENCE_OPTIONS_PREFIX": f"{unique}_",
    }
    folder.run("install")
    careful = findings(folder)
    folder.variables["PGOPTIONS"] = "-c synchronous_commit=off"
    careless, refused = findings(folder), folder.run("install")
    folder.variables["TIMEOUTMGR_ACCEPT_LOSS"] = "true"
    accepted, installed = findings(folder), folder.run("install")

    assert "synchronous_commit" not in careful
    assert careful["durability"]["level"] == "ok"
    assert careless["synchronous_commit"]["level"] == "fail"
    assert "may lose" in careless["synchronous_commit"]["text"]
    assert "durability" not in careless
    assert refused.returncode == Exit.CONFIGURATION
    assert "synchronous_commit = on" in refused.stderr
    assert accepted["synchronous_commit"]["level"] == "warn"
    assert installed.returncode == 0, installed.stderr


def test_an_unnamed_persistence_beside_a_broker_ends_every_start(
    folder: Folder, rabbitmq_url: str
) -> None:
    folder.variables["TIMEOUTMGR_TRANSPORT"] = rabbitmq_url

    ended = [folder.run(*command) for command in (["install"], ["run"], ["doctor"])]

    assert [each.returncode for each in ended] == [4, 4, 4]
    for each in ended:
        assert 'Add persistence = "postgresql+psycopg://' in each.stderr
    assert not (folder.path / "timeoutmgr.db").exists()


def test_a_named_file_beside_a_broker_is_a_warning_of_the_doctor(
    folder: Folder, rabbitmq_url: str
) -> None:
    folder.variables["TIMEOUTMGR_TRANSPORT"] = rabbitmq_url
    folder.variables["TIMEOUTMGR_PERSISTENCE"] = "sqlite:///timeoutmgr.db"
    folder.run("install")

    warning = findings(folder)["one store for all hosts"]

    assert warning["level"] == "warn"
    assert "timeoutmgr.db of this host" in warning["text"]


def test_tls_without_checks_is_a_fail_and_a_plain_link_on_this_machine_is_fine(
    folder: Folder,
) -> None:
    folder.variables |= {
        "TIMEOUTMGR_TRANSPORT": "amqps://127.0.0.1:1//",
        "TIMEOUTMGR_PERSISTENCE": f"sqlite:///{folder.path / 'timeouts.db'}",
        "TIMEOUTMGR_TRANSPORT_OPTIONS_TLS_INSECURE": "true",
    }
    insecure = findings(folder)["connection"]
    del folder.variables["TIMEOUTMGR_TRANSPORT_OPTIONS_TLS_INSECURE"]
    folder.variables["TIMEOUTMGR_TRANSPORT"] = "amqp://127.0.0.1:1//"
    plain = findings(folder)["connection"]

    assert insecure["level"] == "fail"
    assert "tls_insecure" in insecure["remedy"]
    assert plain["level"] == "ok"
