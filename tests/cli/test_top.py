"""top: the screen shows the dashboard's numbers, and what is away."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from textual.widgets import DataTable, Sparkline, Static

from tests.cli.programs import PATIENCE, Folder, environment
from tests.persistence.making import SetClock
from tests.web.site import HOUR, configuration, fill, pending
from timeoutmgr import Endpoint
from timeoutmgr.cli.screen import Screen
from timeoutmgr.clock import SystemClock
from timeoutmgr.message.instants import Micros

ONCE = 3_600.0
"""Seconds: the screen renews itself only when a key asks for it."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sales.db"


@pytest.fixture
def endpoint(file: Path) -> Iterator[Endpoint]:
    made = Endpoint(configuration("sales", f"sqlite:///{file}"))
    yield made
    made.close()


@pytest.fixture
def now(endpoint: Endpoint) -> Micros:
    """The time of the store of the installed endpoint."""
    endpoint.install()
    return endpoint.parts.settings.clock.now()


def text(screen: Screen, name: str) -> str:
    return str(screen.query_one(f"#{name}", Static).content)


def rows(screen: Screen, name: str) -> list[list[str]]:
    table: DataTable[object] = screen.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row(key)] for key in table.rows]


@pytest.mark.asyncio
async def test_the_screen_shows_what_the_store_and_the_queues_hold(
    endpoint: Endpoint, now: Micros
) -> None:
    fill(endpoint, [pending(f"late{n}", now - HOUR) for n in range(2)])
    fill(endpoint, [pending("soon", now + HOUR, destination="mail")])
    endpoint.timeouts.cancel("late1")
    endpoint.timeouts.pause("mail")
    screen = Screen(endpoint, ONCE)

    async with screen.run_test() as pilot:
        await pilot.app.workers.wait_for_complete()
        numbers, span = text(screen, "numbers"), text(screen, "span")
        bars = screen.query_one("#load", Sparkline).data
        names = ("destinations", "queues", "processes", "recent")
        tables = {name: rows(screen, name) for name in names}
        banner = screen.query_one("#banner").display

    assert "pending 2 " in numbers
    assert "overdue 1 " in numbers
    assert "pauses mail" in numbers
    assert span == "the next 24 hours: 1 timeouts"
    assert (len(bars or ()), sum(bars or ())) == (96, 1)
    assert tables["destinations"] == [["billing", "1"], ["mail", "1"]]
    assert ["sales.Timeouts", "0"] in tables["queues"]
    assert tables["processes"] == [["none: timeoutmgr run", *["\N{EN DASH}"] * 4]]
    assert [row[1:] for row in tables["recent"]] == [["cancelled", "late1", "billing"]]
    assert not banner


@pytest.mark.asyncio
async def test_ages_of_rows_are_by_the_clock_of_the_store(postgres_url: str, unique: str) -> None:
    config = configuration(unique, postgres_url)
    config.clock = SetClock(SystemClock().now() - HOUR)
    with closing(Endpoint(config)) as made:
        made.install()
        fill(made, [pending("one", SystemClock().now() + HOUR)])
        made.timeouts.cancel("one")
        screen = Screen(made, ONCE)

        async with screen.run_test() as pilot:
            await pilot.app.workers.wait_for_complete()
            [[age, *_]] = rows(screen, "recent")

    assert age.endswith(" s ago")


@pytest.mark.asyncio
async def test_keys_read_anew_choose_a_span_and_quit(endpoint: Endpoint, now: Micros) -> None:
    screen = Screen(endpoint, ONCE)

    async with screen.run_test() as pilot:
        await pilot.app.workers.wait_for_complete()
        empty = text(screen, "numbers")
        fill(endpoint, [pending("next", now + 40 * HOUR)])
        await pilot.press("r")
        await pilot.app.workers.wait_for_complete()
        again = text(screen, "numbers")
        await pilot.press("s")
        await pilot.app.workers.wait_for_complete()
        week = text(screen, "span")
        await pilot.press("q")

    assert "pending 0 " in empty
    assert "pending 1 " in again
    assert week == "the next 7 days: 1 timeouts"
    assert screen.return_code == 0


@pytest.mark.asyncio
async def test_a_name_of_a_stranger_does_not_steer_the_terminal(
    endpoint: Endpoint, now: Micros
) -> None:
    fill(endpoint, [pending("one", now + HOUR, destination="[red]q\x1b[2J")])
    screen = Screen(endpoint, ONCE)

    async with screen.run_test() as pilot:
        await pilot.app.workers.wait_for_complete()
        [[name, number]] = rows(screen, "destinations")

    assert (name, number) == ("[red]q\\x1b[2J", "1")


@pytest.mark.asyncio
async def test_a_store_that_is_away_leaves_the_last_numbers_and_says_so(
    endpoint: Endpoint, now: Micros, file: Path
) -> None:
    fill(endpoint, [pending("one", now + HOUR)])
    screen = Screen(endpoint, ONCE)

    async with screen.run_test() as pilot:
        await pilot.app.workers.wait_for_complete()
        before = screen.query_one("#banner").display
        endpoint.close()
        file.write_bytes(b"not a database" * 400)
        await pilot.press("r")
        await pilot.app.workers.wait_for_complete()
        banner, numbers = screen.query_one("#banner", Static), text(screen, "numbers")
        shown, said = banner.display, text(screen, "banner")

    assert not before
    assert shown
    assert "numbers of " in said
    assert "pending 1 " in numbers


@pytest.mark.asyncio
async def test_an_endpoint_that_is_not_installed_says_what_to_do(endpoint: Endpoint) -> None:
    screen = Screen(endpoint, ONCE)

    async with screen.run_test() as pilot:
        await pilot.app.workers.wait_for_complete()
        said = text(screen, "banner")

    assert "timeoutmgr install" in said
    assert "no numbers yet" in said


LEAVES = b"\x1b[?1049l"
"""The sign at which a terminal leaves the screen of a program."""


@contextlib.contextmanager
def on_a_terminal(folder: Folder) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run top on a terminal of its own until the screen has numbers; yield it and the terminal."""
    assert folder.run("install").returncode == 0
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "timeoutmgr", "top"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder.path,
        env=environment(TERM="xterm-256color", **folder.variables),
    )
    os.close(theirs)
    try:
        seen = b""
        while b"pending" not in seen:
            seen += os.read(ours, 4096)
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_a_key_of_the_terminal_ends_top(folder: Folder, key: bytes) -> None:
    with on_a_terminal(folder) as (process, terminal):
        os.write(terminal, key)

        assert LEAVES in drained(terminal)
        assert process.wait(PATIENCE) == 0


def test_a_signal_ends_top_and_leaves_the_terminal_as_it_was(folder: Folder) -> None:
    with on_a_terminal(folder) as (process, terminal):
        process.terminate()

        assert LEAVES in drained(terminal)
        assert process.wait(PATIENCE) == 0


def drained(terminal: int) -> bytes:
    """Return the output of a program on *terminal* until the program ends and closes it."""
    sent = b""
    with contextlib.suppress(OSError):
        while given := os.read(terminal, 4096):
            sent += given
    return sent


@pytest.mark.parametrize(
    ("options", "said"),
    [((), "top needs a terminal"), (("--json",), "timeoutmgr --json status")],
)
def test_top_draws_on_a_terminal_alone(folder: Folder, options: tuple[str, ...], said: str) -> None:
    refused = folder.run(*options, "top")

    assert refused.returncode == 2
    assert said in refused.stdout + refused.stderr
