"""The fixtures of the testing kit in a project of a user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.projects import install, run

CONFTEST = """
import pytest
from sqlalchemy import Column, MetaData, String, Table, insert

from timeoutmgr import EndpointConfiguration
from timeoutmgr.satellites import TimeoutManager

config = EndpointConfiguration("sales")
config.use_transport("postgresql+psycopg://nowhere.invalid/sales")
config.use_persistence("postgresql+psycopg://nowhere.invalid/sales")
config.enable_feature(TimeoutManager())
tables = MetaData()
notes = Table("notes", tables, Column("text", String(20)))

@config.handler("Note")
def note(body, context):
    context.session.execute(insert(notes).values(text=body))

@config.handler("Fail")
def fail(body, context):
    raise LookupError(body)

@pytest.fixture
def timeoutmgr_config():
    return config

@pytest.fixture
def timeoutmgr_database():
    return tables
"""
TESTS = """
import asyncio
import threading
from datetime import timedelta

import pytest
from conftest import config, notes
from sqlalchemy import select

def noted(kit):
    with kit.engine.connect() as connection:
        return connection.scalars(select(notes.c.text)).all()

@pytest.mark.parametrize("number", range(6))
def test_each_test_has_a_kit_of_its_own(timeouts, number):
    timeouts.send_local("Note", str(number), delay=timedelta(days=14))
    timeouts.assert_scheduled("Note")
    timeouts.advance(days=14)
    assert noted(timeouts) == [str(number)]
    assert threading.active_count() == 1 or "execnet" in str(threading.enumerate())

@pytest.mark.timeoutmgr(raises=False, inline=True)
def test_the_marker_gives_options(timeouts):
    timeouts.send_local("Note", "inline")
    assert noted(timeouts) == ["inline"]
    timeouts.send_local("Fail", 1)
    assert timeouts.errors == []
    timeouts.advance(hours=1)
    assert len(timeouts.errors) == 1

def test_an_error_is_raised(timeouts):
    timeouts.send_local("Fail", 1)
    with pytest.raises(LookupError):
        timeouts.drain()

@pytest.mark.asyncio
async def test_an_async_test_uses_the_kit(timeouts):
    timeouts.send_local("Note", "async", delay=1)
    await asyncio.sleep(0)
    timeouts.advance(seconds=1)
    assert noted(timeouts) == ["async"]

@pytest.mark.asyncio
async def test_a_program_sends_from_other_threads(timeouts):
    await asyncio.to_thread(timeouts.endpoint.send_local, "Note", "thread", delay=1)
    timeouts.advance(seconds=1)
    assert noted(timeouts) == ["thread"]
"""
ASYNCIO = ("-o", "asyncio_default_fixture_loop_scope=function")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the tests of a user's, and with the package as if it were installed."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_theirs.py").write_text(TESTS)
    install(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_the_fixture_gives_a_kit_of_the_projects_configuration(
    project: Path, words: tuple[str, ...]
) -> None:
    code, counts, said = run(project, *words, *ASYNCIO, "-W", "error", "test_theirs.py")

    assert (code, counts["passed"]) == (0, 10), said


def test_the_fixture_without_a_configuration_says_what_to_define(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "test_plain.py").write_text("def test_plain(timeouts):\n    pass\n")

    code, counts, said = run(tmp_path, "test_plain.py")

    assert (code, counts["error"]) == (1, 1), said
    assert "define a fixture timeoutmgr_config in conftest.py" in said
