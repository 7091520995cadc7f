"""``timeoutmgr migrate`` as a user runs it."""

from __future__ import annotations

import csv
import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy.engine import make_url

from tests.cli.programs import Folder
from tests.persistence.making import SECOND, timeout
from timeoutmgr import EndpointConfiguration
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.main import cli
from timeoutmgr.cli.migrate.shared import on_the_way, sites
from timeoutmgr.cli.shared import Shared
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.migration.places import LocationSpec, MigrationContext, MigrationRequest
from timeoutmgr.migration.run import move_all
from timeoutmgr.native.names import OURS
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.transport.kombu_transport import KombuTransport

NEW = "sqlite:///new.db"


class Filled:
    """An endpoint with three timeouts due tomorrow, and an empty store beside its own."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.endpoint = folder.endpoint
        self.path = folder.path
        clock = SystemClock()
        with closing(self._installed("timeoutmgr.db")) as own, closing(self._installed("new.db")):
            tomorrow = clock.now() + 86_400 * SECOND
            own.timeouts(self.endpoint, clock).store_many(
                [timeout(name, tomorrow, destination=self.endpoint) for name in "abc"]
            )

    def run(self, *arguments: str) -> Result:
        """Run a command in this process."""
        return CliRunner().invoke(cli, ["--json", *arguments])

    def audit(self, name: str) -> list[tuple[str, str, int | None]]:
        """Return the rows of the audit in a store: the action, how it ended, and its number."""
        with closing(SqlPersistence(f"sqlite:///{self.path / name}")) as persistence:
            rows = persistence.timeouts(self.endpoint, SystemClock()).audit()
        return [(row.action, row.outcome, row.changed) for row in rows]

    def _installed(self, name: str) -> SqlPersistence:
        persistence = SqlPersistence(f"sqlite:///{self.path / name}")
        persistence.install()
        return persistence


@pytest.fixture
def filled(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Filled:
    """A folder in which there is something to move."""
    monkeypatch.chdir(folder.path)
    return Filled(folder)


def read(result: Result) -> Any:
    """Return the JSON document that a command printed."""
    return json.loads(result.stdout)


@pytest.mark.behaviour(130)
def test_a_store_is_previewed_moved_and_shown(filled: Filled) -> None:
    none = filled.run("migrate", "status")
    seen = filled.run("migrate", "preview", "--to", NEW)
    moved = filled.folder.run(
        "migrate", "run", "--to", NEW, "--batch", "2", "--report", "report.json"
    )
    shown = filled.run("migrate", "status")
    again = filled.run("migrate", "abort", "--to", NEW)

    assert (none.exit_code, read(none)) == (3, {"runs": []})
    [preview] = read(seen)["endpoints"]
    assert seen.exit_code == 0, seen.output
    assert (preview["count"], preview["problems"], preview["warnings"]) == (3, [], [])
    assert preview["destinations"] == {filled.endpoint: 3}
    assert moved.returncode == 0, moved.stderr
    assert "arrived        3" in moved.stdout
    [report] = json.loads((filled.path / "report.json").read_text())["runs"]
    [run] = read(shown)["runs"]
    assert report.items() <= run.items()
    assert (run["state"], run["batches"], run["new"], run["verified"]) == ("completed", 2, 3, True)
    assert again.exit_code == 3
    assert read(filled.run("migrate", "preview", "--to", NEW))["endpoints"][0]["count"] == 0
    back = filled.run("migrate", "preview", "--from", NEW)
    assert read(back)["endpoints"][0]["count"] == 3
    rows = [
        ("migrate", "started", None),
        ("migrate", "done", 3),
        ("migrate-abort", "started", None),
        ("migrate-abort", "done", 0),
    ]
    assert filled.audit("timeoutmgr.db") == filled.audit("new.db") == rows


@pytest.mark.parametrize("spelt", ["sqlite:///timeoutmgr.db", "sqlite:///{path}/timeoutmgr.db"])
def test_a_store_is_not_moved_into_itself_and_no_run_of_it_is_kept(
    filled: Filled, spelt: str
) -> None:
    own = spelt.format(path=filled.path)

    seen = filled.run("migrate", "preview", "--to", own)
    refused = filled.run("migrate", "run", "--to", own)

    assert (seen.exit_code, refused.exit_code) == (1, 4), seen.output + refused.output
    [problem] = read(seen)["endpoints"][0]["problems"]
    assert "source and target are the same tables; name another --from or --to" in problem
    assert "nothing was moved" in read(refused)["error"]
    assert filled.run("migrate", "status").exit_code == 3


@pytest.mark.parametrize(
    ("change", "is_one"),
    [
        ({"query": {"application_name": "a"}}, True),
        ({"query": {"host": "127.0.0.1"}}, False),  # perhaps the same, which is seen later
    ],
)
def test_one_database_of_a_server_is_known_by_its_address(
    postgres_url: str, unique: str, change: dict[str, Any], is_one: bool
) -> None:
    again = make_url(postgres_url).set(**change).render_as_string(hide_password=False)
    found = {
        prefix: _is_one_store(postgres_url, again, f"{unique}_", prefix)
        for prefix in (f"{unique}_", f"{unique}b_")
    }

    assert found == {f"{unique}_": is_one, f"{unique}b_": False}


def _is_one_store(own: str, other: str, prefix: str, other_prefix: str) -> bool:
    """Return what the participants say of the tables of *prefix* and of *other_prefix*."""
    for one in {prefix, other_prefix}:
        with closing(SqlPersistence(own, prefix=one)) as persistence:
            persistence.install()
    asked = MigrationRequest(
        source=LocationSpec(url=own, prefix=prefix),
        target=LocationSpec(url=other, prefix=other_prefix),
        batch=1,
    )
    settings = EndpointConfiguration("e").settings()
    with closing(MigrationContext(settings, asked, "e")) as site:
        found = site.parts().is_one_store
    settings.transport.close()
    return found


def test_a_report_that_cannot_be_written_stops_a_run_before_it_moves(filled: Filled) -> None:
    nowhere = filled.run("migrate", "run", "--to", NEW, "--report", "missing/r.json")
    through = filled.run("migrate", "run", "--to", NEW, "--report", "new.db/r.json")

    assert (nowhere.exit_code, through.exit_code) == (2, 2), nowhere.output + through.output
    assert "--report missing/r.json cannot be written" in read(nowhere)["error"]
    assert "there is no folder" in read(through)["error"]
    assert filled.run("migrate", "status").exit_code == 3


def test_a_report_that_is_lost_after_the_run_was_shown_before(filled: Filled) -> None:
    ended = filled.run("migrate", "run", "--to", NEW, "--report", "/dev/full")

    assert ended.exit_code == 1
    assert read(ended)["runs"][0]["new"] == 3
    assert "--report /dev/full cannot be written (No space left on device)" in ended.stderr


@pytest.mark.parametrize(
    ("target", "command"),
    [
        (
            "sqlite:///bare.db",
            "run `timeoutmgr --config FILE install --tables`, with a settings FILE",
        ),
        ("bare.toml", "run `timeoutmgr --config bare.toml install --tables`"),
    ],
)
def test_a_target_without_tables_names_the_installation_of_the_target(
    filled: Filled, target: str, command: str
) -> None:
    settings = f'endpoint = "{filled.endpoint}"\npersistence = "sqlite:///bare.db"\n'
    filled.folder.write("bare.toml", settings)

    refused = filled.run("migrate", "preview", "--to", target)

    assert refused.exit_code == 4
    assert "bare.db has no tables of timeoutmgr yet" in read(refused)["error"]
    assert command in read(refused)["error"]


@pytest.mark.behaviour(133)
def test_an_interrupted_run_goes_on_with_the_same_command_or_is_aborted(filled: Filled) -> None:
    filled.folder.variables["TIMEOUTMGR_CRASHPOINT"] = "migration.delivered:2"
    died = filled.folder.run("migrate", "run", "--to", NEW, "--batch", "1")

    other = filled.run("migrate", "run", "--to", NEW, "--batch", "2")
    elsewhere = filled.run("migrate", "abort", "--to", NEW, "--to-prefix", "x_")
    aborted = filled.run("migrate", "abort", "--to", NEW)

    assert died.returncode == -9
    assert other.exit_code == 4
    assert "batch was 1 and is 2" in other.stdout
    assert elsewhere.exit_code == 4
    assert aborted.exit_code == 0, aborted.output
    [run] = read(aborted)["runs"]
    assert (run["state"], run["new"], run["returned"], run["verified"]) == ("aborted", 2, 0, True)
    assert filled.audit("timeoutmgr.db") == [
        ("migrate", "started", None),
        ("migrate", "started", None),
        ("migrate", "failed", 0),
        ("migrate-abort", "started", None),
        ("migrate-abort", "done", 0),
    ]
    assert read(filled.run("migrate", "preview", "--to", NEW))["endpoints"][0]["count"] == 1


def test_a_run_with_renamed_destinations_is_aborted_with_the_same_renames_only(
    filled: Filled,
) -> None:
    at = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    (filled.path / "export.csv").write_text(
        f"Id,Destination,SagaId,State,Time,Headers\n1,old,,e30=,{at},{{}}\n"
    )
    ends = ("--from-file", "export.csv", "--to", NEW)
    # A killed process leaves its scratch file.
    filled.folder.variables |= {
        "TIMEOUTMGR_CRASHPOINT": "migration.sending",
        "TMPDIR": str(filled.path),
    }
    filled.folder.run("migrate", "run", *ends, "--rename", "old=new")

    other = filled.run("migrate", "abort", *ends)
    same = filled.run("migrate", "abort", *ends, "--rename", "old=new")

    assert (other.exit_code, same.exit_code) == (4, 0), other.output + same.output
    assert "begun with rename='old=new'" in other.stdout


@pytest.mark.behaviour(131)
def test_a_problem_of_one_endpoint_stops_the_move_of_all_endpoints(filled: Filled) -> None:
    columns = ["Id", "Destination", "SagaId", "State", "Time", "Headers"]
    at = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    with (filled.path / "export.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(columns)
        out.writerow(["1", "billing@HOST", "", "e30=", at, "{}"])
        out.writerow(["2", "", "", "e30=", at, "{}"])
    command = ("migrate", "run", "--from-file", "export.csv", "--to", NEW)

    refused = filled.run(*command, "--endpoint", "one", "--endpoint", "two")
    (filled.path / "export.csv").write_text(
        (filled.path / "export.csv").read_text().replace('2,""', "2,x").replace("2,,", "2,x,")
    )
    moved = filled.run(*command, "--endpoint", "one", "--rename", "billing@HOST=billing")

    assert refused.exit_code == 4
    assert read(refused)["error"].count("row 2: ") == 2
    assert moved.exit_code == 0, moved.output
    assert read(moved)["runs"][0]["new"] == 2


def test_a_store_goes_into_the_levels_and_back(filled: Filled, rabbitmq_url: str) -> None:
    broker = f'transport = "{rabbitmq_url}"\nerror_queue = "{filled.endpoint}.error"\n'
    settings = f'endpoint = "{filled.endpoint}"\npersistence = "sqlite:///timeoutmgr.db"\n{broker}'
    filled.folder.write("timeoutmgr.toml", settings)

    features = 'features = ["native-delayed-delivery", "timeout-manager"]'
    filled.folder.write("native.toml", f"{settings}{features}\n")

    missing = filled.run("migrate", "run", "--to", "native")
    installed = filled.run("--config", "native.toml", "install")
    moved = filled.run("migrate", "run", "--to", "native")
    back = filled.run("migrate", "run", "--from", "native", "--all-senders")

    assert installed.exit_code == 0, installed.output
    assert missing.exit_code == 4
    assert "there is no such queue for 3 timeouts" in missing.stdout
    assert moved.exit_code == 0, moved.output
    assert back.exit_code == 0, back.output
    assert read(back)["runs"][0]["new"] >= 3
    assert read(filled.run("--config", "native.toml", "list"))["total"] >= 3
    with (
        closing(KombuTransport(rabbitmq_url)) as transport,
        closing(transport.session()) as session,
    ):
        session.delete_queues([filled.endpoint, f"{filled.endpoint}.error"])
        assert session.missing_queues(OURS.level_names) == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["preview"], "source and target are the same"),
        (["preview", "--to", "native"], "has no delay levels"),
        (["preview", "--to", "redis://h"], "redis"),
        (["preview", "--to", NEW, "--rename", "a=b"], "a store's keep their names"),
        (["run", "--layout", "msmq"], "say in which database the table is"),
        (["run", "--to", NEW, "--from-prefix", "old_"], "a database which is named"),
        (["run", "--to", "native", "--to-schema", "x"], "a database which is named"),
        (["run", "--to", NEW, "--ledger", NEW], "keeps the ledger"),
        (
            ["run", "--to", NEW, "--cutoff", "2030-01-02T00:00Z", "--until", "2030-01-01T00:00Z"],
            "swap",
        ),
    ],
)
def test_ends_that_do_not_fit_are_refused(arguments: list[str], why: str, filled: Filled) -> None:
    result = filled.run("migrate", *arguments)

    assert result.exit_code == 4, result.output
    assert why in result.output


def test_a_destination_is_renamed_once(filled: Filled) -> None:
    twice = ("--rename", "billing=accounts", "--rename", "billing=archive")

    result = filled.run("migrate", "preview", "--to", "native", *twice)

    assert result.exit_code == 2, result.output
    assert "--rename gives 'billing' twice" in result.output


@pytest.mark.parametrize("name", ["preview", "run", "abort", "status"])
def test_every_command_has_an_example(name: str) -> None:
    result = CliRunner().invoke(cli, ["migrate", name, "--help"], prog_name="timeoutmgr")

    assert result.exit_code == 0
    assert "Examples:\n" in result.output
    assert f"TIMEOUTMGR_CLI_MIGRATE_{name.upper()}_FROM" in result.output


def test_levels_go_into_levels_of_the_same_broker_only(rabbitmq_url: str, unique: str) -> None:
    config = EndpointConfiguration(unique)
    config.use_transport(rabbitmq_url)
    asked = MigrationRequest(
        source=LocationSpec(url="native", names="nservicebus-v1"),
        target=LocationSpec(url="amqps://elsewhere//"),
    )
    settings = config.settings()
    with (
        closing(MigrationContext(settings, asked, unique)) as site,
        pytest.raises(ConfigurationError, match="on the same broker only"),
    ):
        site.parts()
    settings.transport.close()


def test_a_terminal_shows_the_progress_of_a_migration(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = MigrationRequest(target=LocationSpec(url=NEW), batch=1)
    shared = Shared()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    with sites(shared, asked, ()) as [opened], on_the_way(shared, opened) as on_batch:
        move_all(opened.parts, opened.terms, on_batch)

    assert "3/3" in capsys.readouterr().err


def test_a_password_comes_from_the_environment_and_not_from_the_command_line(
    filled: Filled,
) -> None:
    url = "postgresql+psycopg://user:s3cret@127.0.0.1:1/none"

    typed = filled.run("migrate", "preview", "--to", url)
    filled.folder.variables["TIMEOUTMGR_CLI_MIGRATE_PREVIEW_TO"] = url
    given = filled.folder.run("migrate", "preview")

    assert typed.exit_code == 2
    assert "put the URL into TIMEOUTMGR_CLI_MIGRATE_PREVIEW_TO" in typed.output
    assert "s3cret" not in typed.output + given.stdout + given.stderr
    assert given.returncode not in (0, 2)


def test_processes_move_a_store_side_by_side(filled: Filled) -> None:
    moved = read(filled.run("migrate", "run", "--to", NEW, "--batch", "1", "--processes", "2"))

    [report] = moved["runs"]
    assert (report["batches_done"], report["new"], report["verified"]) == (3, 3, True)
    assert filled.audit("new.db")[-1] == ("migrate", "done", 3)


@pytest.mark.parametrize("source", [("--from", "native"), ("--layout", "nservicebus")])
def test_what_has_an_order_is_moved_by_one_process(filled: Filled, source: tuple[str, ...]) -> None:
    done = filled.run("migrate", "run", *source, "--to", NEW, "--processes", "2")

    assert done.exit_code == Exit.CONFIGURATION
    assert "--processes 2: delay levels, and tables and exports" in done.stdout
