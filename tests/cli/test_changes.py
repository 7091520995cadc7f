"""pause, resume, change, runs and audit from the shell."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing, suppress
from datetime import datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import text

from chaos.crash_command import VARIABLE
from tests.cli.programs import Folder, Program, wait_until
from tests.persistence.making import SECOND, timeout
from timeoutmgr.clock import SystemClock
from timeoutmgr.database.engine import Database
from timeoutmgr.persistence import SqlPersistence


@pytest.fixture
def three(folder: Folder) -> list[str]:
    """The ids of three stored timeouts of a saga, due in days."""
    program: Program = folder.start("run", "--app", "app:config")
    program.wait_for("runs")
    ids = [
        folder.run(
            *("--json", "send", folder.endpoint, "Hello", "{}"),
            *("--delay", f"{number}d", "--saga", "s"),
        ).json()["id"]
        for number in (1, 2, 3)
    ]
    wait_until(lambda: folder.run("--json", "list").json()["total"] == 3, "the timeouts are stored")
    return ids


def test_a_dry_run_is_applied_and_undone_and_the_audit_tells_of_each(
    folder: Folder, three: list[str]
) -> None:
    before = folder.run("--json", "list").json()["timeouts"]
    why = ("--reason", "billing is down")
    plan = folder.run("--json", "change", "shift", "--by", "2h", "--saga", "s", "--dry-run", *why)
    assert (plan.returncode, plan.json()["selected"]) == (0, 3), plan.stdout + plan.stderr
    assert [each["id"] for each in plan.json()["samples"]] == three
    run_id = plan.json()["id"]
    assert folder.run("--json", "list").json()["timeouts"] == before

    applied = folder.run("--json", "runs", "apply", run_id, *why)
    moved = folder.run("--json", "list").json()["timeouts"]
    undone = folder.run("--json", "runs", "undo", run_id, *why)
    again = folder.run("--json", "runs", "undo", run_id, *why)

    assert (applied.returncode, applied.json()["changed"]) == (0, 3)
    assert [each["due"] for each in moved] != [each["due"] for each in before]
    assert (undone.returncode, undone.json()["undone"]) == (0, 3)
    assert folder.run("--json", "list").json()["timeouts"] == before
    assert (again.returncode, again.json()) == (0, undone.json())
    rows = folder.run("--json", "audit", "list").json()["audit"]
    assert [(row["action"], row["outcome"]) for row in rows] == [
        *(("shift", "done"), ("shift", "started"), ("shift", "done")),
        *(("undo-shift", "started"), ("undo-shift", "done")),
    ]
    assert {(row["channel"], row["reason"]) for row in rows} == {("cli", "billing is down")}
    assert folder.run("--json", "runs", "list").json()["runs"][0]["state"] == "undone"


def test_a_cancel_exports_first_and_refuses_another_number(
    folder: Folder, three: list[str]
) -> None:
    why = ("--reason", "withdrawn")
    refused = folder.run("--json", "change", "cancel", "--all", "--expect", "2", *why)
    assert refused.returncode == 2
    assert folder.run("--json", "list").json()["total"] == 3

    done = folder.run(
        "--json", "change", "cancel", *three[:2], "--export", "out.jsonl", "--expect", "2", *why
    )
    nothing = folder.run("--json", "change", "cancel", "--saga", "other", *why)
    shown = folder.run("change", "cancel", "--saga", "other", *why)

    assert (done.returncode, done.json()["changed"]) == (0, 2), done.stdout
    assert shown.stdout.startswith("no pending timeout is selected"), shown.stdout
    lines = (folder.path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == three[:2]
    assert nothing.returncode == 3
    assert folder.run("--json", "list").json()["total"] == 1


@pytest.mark.parametrize("name", ["kept.jsonl", "missing/out.jsonl"])
def test_an_export_that_cannot_be_made_is_refused_before_the_plan(
    folder: Folder, three: list[str], name: str
) -> None:
    folder.write("kept.jsonl", "of another day")

    refused = folder.run("change", "cancel", "--all", "--export", name, "--reason", "withdrawn")

    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert f"error: --export {name} " in refused.stderr
    assert (folder.path / "kept.jsonl").read_text() == "of another day"
    assert folder.run("--json", "runs", "list").json()["runs"] == []
    assert folder.run("--json", "list").json()["total"] == 3


def test_a_change_that_is_killed_in_its_export_cannot_be_applied(
    folder: Folder, three: list[str]
) -> None:
    os.mkfifo(folder.path / "out")
    why = ("--reason", "withdrawn")
    # The reader has come, so that the plan begins; it reads nothing before the kill.
    holder = os.open(folder.path / "out", os.O_RDWR)
    fill(holder)
    program = folder.start("change", "cancel", "--all", "--export", "out", *why)
    runs = partial(folder.run, "--json", "runs", "list")
    wait_until(lambda: [one["state"] for one in runs().json()["runs"]] == ["planning"], "planning")
    program.stop(signal.SIGKILL)
    os.close(holder)

    (run,) = runs().json()["runs"]
    applied = folder.run("runs", "apply", run["id"], *why)

    assert applied.returncode == 2
    assert "planning and cannot be applied" in applied.stderr
    assert "make a new plan" in applied.stderr
    assert folder.run("--json", "list").json()["total"] == 3


def fill(pipe: int) -> None:
    """Write into *pipe* until a writer has to wait."""
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while os.write(pipe, bytes(4096)):
            pass


@pytest.mark.parametrize("given", [(), ("--json",)], ids=["text", "json"])
def test_an_export_to_a_full_disk_is_a_sentence_and_changes_nothing(
    folder: Folder, three: list[str], given: tuple[str, ...]
) -> None:
    why = ("--reason", "withdrawn")

    ended = folder.run(*given, "change", "cancel", "--all", "--export", "/dev/full", *why)

    assert ended.returncode == 1
    assert "--export /dev/full cannot be written to its end (No space left on device)" in (
        ended.stdout if given else ended.stderr
    )
    assert "Traceback" not in ended.stderr
    (run,) = folder.run("--json", "runs", "list").json()["runs"]
    assert run["state"] == "planning"
    assert folder.run("runs", "apply", run["id"], *why).returncode == 2
    assert folder.run("--json", "list").json()["total"] == 3


def test_an_export_is_on_the_disk_before_its_run_can_be_applied(
    folder: Folder, three: list[str]
) -> None:
    given = ("change", "cancel", "--all", "--export", "out.jsonl", "--reason", "withdrawn")
    folder.variables = {VARIABLE: "bulk.exported:1"}
    killed = folder.run(*given)
    folder.variables = {}

    (run,) = folder.run("--json", "runs", "list").json()["runs"]
    applied = folder.run("runs", "apply", run["id"], "--reason", "withdrawn")

    assert killed.returncode != 0
    lines = (folder.path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == three
    assert (run["state"], applied.returncode) == ("planning", 2)
    assert folder.run("--json", "list").json()["total"] == 3


@pytest.fixture(params=["postgres", "mysql"])
def row_locking_url(request: pytest.FixtureRequest, folder: Folder, unique: str) -> str:
    """The database of a folder whose store has three timeouts, due tomorrow."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    for part in ("TRANSPORT", "PERSISTENCE"):
        folder.variables |= {
            f"TIMEOUTMGR_{part}": url,
            f"TIMEOUTMGR_{part}_OPTIONS_PREFIX": f"{unique}_",
        }
    assert folder.run("install").returncode == 0
    clock = SystemClock()
    with closing(SqlPersistence(url, prefix=f"{unique}_")) as persistence:
        made = [timeout(f"t{number}", clock.now() + 86_400 * SECOND) for number in range(3)]
        persistence.timeouts(folder.endpoint, clock).store_many(made)
    return url


def test_a_run_of_which_another_process_has_a_part_ends_with_1_until_it_is_done(
    folder: Folder, row_locking_url: str, unique: str
) -> None:
    why = ("--reason", "billing is down")
    plan = folder.run("--json", "change", "shift", "--by", "2h", "--all", "--dry-run", *why)
    batch = text(f"SELECT no FROM {unique}_batches WHERE run_id = :run FOR UPDATE")
    other = Database(row_locking_url)

    for command, state, done, number in (
        ("apply", "running", "completed", "changed"),
        ("undo", "undoing", "undone", "undone"),
    ):
        with other.engine.begin() as connection:
            assert connection.execute(batch, {"run": plan.json()["id"]}).all()
            beside = folder.run("--json", "runs", command, plan.json()["id"], *why)
        after = folder.run("--json", "runs", command, plan.json()["id"], *why)

        assert (beside.returncode, beside.json()["state"], beside.json()[number]) == (1, state, 0)
        assert f"is still {state}: another process works on up to 3 of its" in beside.stderr
        assert (after.returncode, after.json()["state"], after.json()[number]) == (0, done, 3)
    other.dispose()


def test_ids_that_a_plan_does_not_select_are_named(folder: Folder, three: list[str]) -> None:
    others = [f"other-{number}" for number in range(7)]
    message = folder.run("--json", "show", three[0]).json()["message_id"]
    given = ("change", "cancel", message, *others, "--reason", "withdrawn")

    planned = folder.run("--json", *given, "--dry-run")
    shown = folder.run(*given, "--dry-run")
    done = folder.run("--json", *given)

    assert planned.json()["not_selected"] == others
    assert "7 of the ids not selected" in shown.stdout
    assert "other-0, other-1, other-2, other-3, other-4, ..." in shown.stdout
    assert (done.json()["changed"], done.json()["not_selected"]) == (1, others)


def test_an_export_of_a_plan_that_is_refused_leaves_no_file(
    folder: Folder, three: list[str]
) -> None:
    given = ("change", "reroute", "--queue", "amq.direct", "--all", "--export", "out.jsonl")

    refused = folder.run(*given, "--reason", "billing has moved")

    assert "amq.direct" in refused.stderr
    assert refused.returncode != 0
    assert not (folder.path / "out.jsonl").exists()


@pytest.mark.parametrize(
    "given",
    [
        ("shift", "--all"),
        ("cancel", "--all", "--by", "2h"),
        ("cancel",),
        ("cancel", "--all", "--saga", "s"),
        ("cancel", "--all", "--id-prefix", ""),
    ],
)
def test_a_change_without_its_values_or_selection_is_refused(
    folder: Folder, given: tuple[str, ...]
) -> None:
    assert folder.run("change", *given, "--reason", "x").returncode == 2


def test_a_pause_is_seen_in_every_view_until_the_resume(folder: Folder, three: list[str]) -> None:
    paused = folder.run("--json", "pause", folder.endpoint, "--reason", "billing is down")
    assert (paused.returncode, paused.json()["result"]) == (0, "paused")
    again = folder.run("--json", "pause", folder.endpoint, "--reason", "still down")
    assert again.json()["result"] == "changed"

    folder.run("send-now", three[0])
    wait_until(
        lambda: folder.run("--json", "status").json()["timeouts"]["pauses"][0]["parked"] == 1,
        "the due timeout is parked",
    )
    status = folder.run("status")
    listed = folder.run("list")
    findings = folder.run("--json", "doctor").json()["findings"]
    assert "paused: " in status.stdout
    assert "still down" in listed.stdout
    assert [each["level"] for each in findings if each["check"] == "paused"] == ["warn"]
    assert [each["level"] for each in findings if each["check"] == "overdue"] == ["ok"]

    resumed = folder.run("--json", "resume", folder.endpoint)
    twice = folder.run("--json", "resume", folder.endpoint)

    assert (resumed.returncode, resumed.json()["returned"]) == (0, 1)
    assert twice.returncode == 3
    wait_until(
        lambda: folder.run("--json", "list").json()["total"] == 2, "the parked timeout is sent"
    )


def test_an_endpoint_is_paused_for_a_duration(folder: Folder, three: list[str]) -> None:
    why = ("--reason", "change freeze")
    refused = folder.run("pause", "--endpoint", "--until", "yesterday", *why)
    assert (refused.returncode, "is not a time" in refused.stderr) == (2, True)

    refused = folder.run("pause", "--endpoint", "--until", "99999999999d", *why)
    assert (refused.returncode, "longer than any calendar" in refused.stderr) == (2, True)

    paused = folder.run("--json", "pause", "--endpoint", "--until", "2h", *why)

    [pause] = folder.run("--json", "list").json()["pauses"]
    since, until = (datetime.fromisoformat(pause[name]) for name in ("since", "until"))
    assert (paused.json()["result"], paused.json()["until"]) == ("paused", pause["until"])
    assert timedelta(hours=1) < until - since <= timedelta(hours=2)
    assert pause["destination"] is None


def test_verify_finds_what_the_given_heads_miss(folder: Folder, three: list[str]) -> None:
    folder.run("cancel", three[0])
    heads = folder.run("--json", "audit", "verify")
    assert (heads.returncode, heads.json()["faults"]) == (0, [])
    document = heads.json()
    document["heads"]["another chain"] = [4, "a hash"]
    (folder.path / "heads.json").write_text(json.dumps(document))

    checked = folder.run("audit", "verify", "--heads", "heads.json")

    assert checked.returncode == 6
    assert "row 4, a given head, is gone" in checked.stderr


@pytest.mark.parametrize(
    "text",
    ['{"heads": {"a chain": [1e400, "a hash"]}}', '{"heads": [1]}', '{"heads": ' + "[" * 100_000],
    ids=["infinite", "list", "deep"],
)
def test_verify_refuses_a_file_without_heads(folder: Folder, text: str) -> None:
    folder.run("install")
    (folder.path / "heads.json").write_text(text)

    refused = folder.run("audit", "verify", "--heads", "heads.json")

    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr
