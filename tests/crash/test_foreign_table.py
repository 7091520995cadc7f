"""A migration out of another product's table is killed: each row is there, or with us."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import Column, DateTime, LargeBinary, MetaData, String, Table, Text, insert, select

from chaos.forkserver_client import ForkServer
from tests.crash.cases import Crash
from tests.crash.mover import PREFIXES
from tests.crash.test_migrations import Scene
from timeoutmgr.crashpoints import POINTS
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_micros
from timeoutmgr.persistence import SqlPersistence

RUNNING: Final = ("foreign.copied", "foreign.shifted", "foreign.moved_aside")
ABORTING: Final = (
    "migration.found_hidden",
    *("foreign.copied", "foreign.shifted", "foreign.moved_back"),
)
"""In the order in which an abort comes by them."""

ASIDE: Final = Crash("foreign.moved_aside", 2)
"""Where the run died that is then aborted: a batch is aside, and the ledger does not know."""


class TableScene(Scene):
    """Rows of another product, beside our store in one database."""

    def __init__(self, url: str, endpoint: str, folder: Path, fork_server: ForkServer) -> None:
        super().__init__(url, endpoint, folder, fork_server)
        self.more = {"table": f"{endpoint}_TimeoutData"}
        self._table = Table(
            self.more["table"],
            MetaData(),
            Column("Id", String(38), primary_key=True),
            Column("Destination", String(200)),
            Column("SagaId", String(38)),
            Column("State", LargeBinary),
            Column("Time", DateTime),
            Column("Headers", Text),
        )

    def fill(self) -> None:
        """Store the rows."""
        rows = [
            {
                "Id": one.id,
                "Destination": one.destination,
                "State": one.message.body,
                "Time": from_micros(one.due).replace(tzinfo=None),
                "Headers": json.dumps({headers.MESSAGE_ID: one.message.id}),
            }
            for one in self.given
        ]
        with (
            closing(self._persistence()) as persistence,
            persistence.database.begin() as connection,
        ):
            self._table.create(connection)
            connection.execute(insert(self._table), rows)

    def check(self, *, moved: bool) -> None:
        """Each row is with its product, or with us as a timeout."""
        with (
            closing(self._persistence()) as persistence,
            persistence.database.read() as connection,
        ):
            there = list(connection.execute(select(self._table.c.Id)).scalars())
        by_message = {one.message.id: one.id for one in self.given}
        here = [by_message[one.message.id] for one in self._pending(PREFIXES[1])]
        assert sorted(there + here) == [one.id for one in self.given]
        assert there == ([] if moved else there)

    def _persistence(self) -> SqlPersistence:
        return SqlPersistence(self.url, prefix=PREFIXES[1])


@pytest.fixture
def scene(
    migrating_url: Callable[[str], str], unique: str, tmp_path: Path, fork_server: ForkServer
) -> TableScene:
    """A table with eight rows."""
    made = TableScene(migrating_url("sqlite"), unique, tmp_path, fork_server)
    made.fill()
    return made


@pytest.mark.behaviour(132)
def test_a_run_that_dies_at_one_point_after_the_other_is_finished(scene: TableScene) -> None:
    for point in RUNNING:
        scene.kill(Crash(point, 1))
    scene.finish()
    scene.check(moved=True)


@pytest.mark.behaviour(134)
def test_an_abort_that_dies_at_one_point_after_the_other_is_finished(scene: TableScene) -> None:
    scene.kill(ASIDE)
    for point in ABORTING:
        scene.kill(Crash(point, 1), aborts=True)
    scene.finish(aborts=True)
    scene.check(moved=False)


def test_every_point_is_died_at() -> None:
    points = {point for point in POINTS if point.startswith("foreign.")}

    assert {*RUNNING, *ABORTING} == {"migration.found_hidden", *points}
