"""recurring list, pause, resume, run and remove from the shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.programs import Folder

SCHEDULE = """
[recurring.daily-report]
type = "Hello"
body = { n = 1 }
every = "1 day at 06:00 Europe/Berlin"
"""


@pytest.fixture
def scheduled(folder: Folder) -> Folder:
    """A folder with a schedule, whose first run is stored."""
    settings = Path(folder.path / "timeoutmgr.toml")
    settings.write_text(settings.read_text() + SCHEDULE)
    assert folder.run("install").returncode == 0
    for command in ("pause", "resume"):
        assert folder.run("recurring", command, "daily-report").returncode == 0
    return folder


def the_one(folder: Folder) -> dict[str, object]:
    """Return the only schedule that is listed."""
    listed = folder.run("--json", "recurring", "list")
    assert listed.returncode == 0, listed.stderr
    [one] = listed.json()["recurring"]
    assert isinstance(one, dict)
    return one


def test_a_schedule_is_listed_with_its_next_run(scheduled: Folder) -> None:
    one = the_one(scheduled)
    for_people = scheduled.run("recurring", "list")

    assert (one["name"], one["state"], one["type"]) == ("daily-report", "scheduled", "Hello")
    assert (one["every"], one["catch_up"]) == ("1 day at 06:00 Europe/Berlin", "one")
    pending = scheduled.run("--json", "list").json()["timeouts"]
    assert [(each["id"], each["due"]) for each in pending] == [(one["timeout"], one["next"])]
    assert for_people.stdout.splitlines()[1].startswith("daily-report  scheduled  ")


def test_a_pause_and_a_resume_say_whether_they_changed_anything(scheduled: Folder) -> None:
    results = [
        scheduled.run("--json", "recurring", command, "daily-report").json()["result"]
        for command in ("pause", "pause", "resume", "resume")
    ]

    assert results == ["paused", "unchanged", "resumed", "unchanged"]


def test_a_paused_schedule_has_no_pending_run(scheduled: Folder) -> None:
    scheduled.run("recurring", "pause", "daily-report")

    assert the_one(scheduled)["state"] == "paused"
    assert scheduled.run("--json", "list").json()["timeouts"] == []


def test_run_sends_the_message_at_once(scheduled: Folder) -> None:
    sent = scheduled.run("--json", "recurring", "run", "daily-report")
    assert sent.returncode == 0, sent.stderr
    program = scheduled.start("run", "--app", "app:config")

    program.wait_for("handled {'n': 1}")

    assert sent.json()["destination"] == scheduled.endpoint
    assert the_one(scheduled)["state"] == "scheduled"


def test_a_schedule_that_left_the_configuration_is_shown_and_removed(scheduled: Folder) -> None:
    refused = scheduled.run("recurring", "remove", "daily-report")
    settings = Path(scheduled.path / "timeoutmgr.toml")
    settings.write_text(settings.read_text().replace(SCHEDULE, ""))

    assert the_one(scheduled)["state"] == "not configured here"
    removed = scheduled.run("recurring", "remove", "daily-report")

    assert refused.returncode == 4
    assert "out of the configuration first" in refused.stderr
    assert removed.returncode == 0
    assert scheduled.run("--json", "list").json()["timeouts"] == []
    assert scheduled.run("--json", "recurring", "list").json() == {"recurring": []}


@pytest.mark.parametrize("command", ["pause", "resume", "run", "remove"])
def test_an_unknown_name_is_not_found(scheduled: Folder, command: str) -> None:
    ended = scheduled.run("recurring", command, "dayly-report")

    assert ended.returncode == 3
    assert "'dayly-report' here; known: daily-report" in ended.stderr
