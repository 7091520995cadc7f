"""An upgrade gives claims and fencing tokens their own tables; open runs go on after it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, text, update

from tests.migration.conftest import SETTINGS, Move, names, pending, some
from timeoutmgr.errors import MigrationFailed, MigrationRefused
from timeoutmgr.migration import BatchState, MigrationRunState
from timeoutmgr.migration.batch_step import claim_next_batch, hide, send
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql.tables import TimeoutTables, tables

pytestmark = pytest.mark.installs

Made = Callable[..., SqlPersistence]
SOON = 60.0


class Before:
    """The ledger and the target of a migration as the revision 0008 had them."""

    def __init__(self, persistence: SqlPersistence, prefix: str) -> None:
        self.persistence = persistence
        self.prefix = prefix
        self.tables: TimeoutTables = tables(None, prefix)

    def rewind(self, *, drop: bool = True) -> None:
        """Put claims and tokens into ``runs`` again, and *drop* their tables."""
        with self.persistence.database.begin() as connection:
            for claim in connection.execute(select(self.tables.batch_claims)).all():
                row = self._row(f"{claim.run_id}.{claim.no}", "batch", "claimed", claim.endpoint)
                connection.execute(insert(self.tables.runs), {**row, "runner": claim.owner})
            for token in connection.execute(select(self.tables.fencing_tokens)).all():
                row = self._row(f"{token.run_id}.arrival", "arrival", token.state, token.endpoint)
                connection.execute(insert(self.tables.runs), row)
            connection.execute(text(f"UPDATE {self.prefix}timeouts_version SET version_num='0008'"))
        if drop:
            with self.persistence.database.begin() as connection:
                self.tables.batch_claims.drop(connection)
                self.tables.fencing_tokens.drop(connection)

    def _row(self, run_id: str, kind: str, state: str, endpoint: str) -> dict[str, Any]:
        return {
            "run_id": run_id,
            "kind": kind,
            "state": state,
            "created": 1,
            "parameters": "{}",
            "endpoint": endpoint,
        }

    def kinds(self) -> list[str]:
        """Return the kinds of the rows of ``runs``."""
        with self.persistence.database.read() as connection:
            rows = connection.execute(select(self.tables.runs.c.kind))
            return sorted(rows.scalars())

    def claims(self) -> list[tuple[str, int, str]]:
        """Return the claims, each with its run and its owner."""
        claims = self.tables.batch_claims.c
        with self.persistence.database.read() as connection:
            rows = connection.execute(select(claims.run_id, claims.no, claims.owner))
            return sorted((row.run_id, row.no, row.owner) for row in rows)


@pytest.fixture(params=("sqlite", "postgres", "mysql"))
def pair(
    request: pytest.FixtureRequest, tmp_path: Any, unique: str
) -> Iterator[tuple[Move, Before, Before]]:
    """A migration between tables of one test's own, on each database."""
    kind = request.param
    is_file = kind == "sqlite"
    url = f"sqlite:///{tmp_path / 't.db'}" if is_file else request.getfixturevalue(f"{kind}_url")
    prefixes = (f"{unique}_from_", f"{unique}_into_")
    source, target = (SqlPersistence(url, prefix=one, settings=SETTINGS) for one in prefixes)
    for one in (source, target):
        one.install()
    made = Move((source, target), unique)
    yield made, Before(source, prefixes[0]), Before(target, prefixes[1])
    for one in (source, target):
        one.install()  # a test may have removed the tables
        one.uninstall(unique, force=True)
        one.close()


def test_an_open_run_of_the_revision_before_is_completed(
    pair: tuple[Move, Before, Before],
) -> None:
    move, source, target = pair
    move.source.store_many(some(9))
    driver, worker = move.parts(), move.parts()
    run = move.begin(driver)
    claimed = claim_next_batch(worker, run)
    assert claimed is not None
    hidden = hide(worker, run, claimed)
    for one in (source, target):
        one.rewind()
        one.persistence.install()

    kept = [(one[:2]) for one in source.claims()]
    with pytest.raises(MigrationRefused, match="another process works at run"):
        claim_next_batch(worker, run)  # the runner before the upgrade has lost the run
    send(worker, run, hidden)  # an owner that is alive ends its batch
    follower = move.parts()
    report = follower.migrate(move.begin(follower))

    assert kept == [(run.id, 0)]
    assert (report.run, report.collected, report.new, report.verified) == (run.id, 9, 9, True)
    assert (source.kinds(), target.kinds()) == (["migration"], [])
    assert source.claims() == []
    assert names(pending(move.target)) == [one.id for one in some(9)]
    for parts in (driver, worker, follower):
        parts.close()


def test_a_batch_of_a_dead_owner_is_claimed_after_the_upgrade(
    pair: tuple[Move, Before, Before],
) -> None:
    move, source, target = pair
    move.source.store_many(some(3))
    dead = move.parts()
    run = move.begin(dead)
    claimed = claim_next_batch(dead, run)
    assert claimed is not None
    hide(dead, run, claimed)
    dead.close()
    for one in (source, target):
        one.rewind()
        one.persistence.install()

    report = move.abort()

    assert (report.run, report.state, report.returned) == (run.id, MigrationRunState.ABORTED, 3)
    assert len(pending(move.source)) == 3


def test_a_run_that_was_shut_before_the_upgrade_stays_shut(
    pair: tuple[Move, Before, Before],
) -> None:
    move, source, target = pair
    move.source.store_many(some(3))
    late = move.parts()
    run = move.begin(late)
    claimed = claim_next_batch(late, run)
    assert claimed is not None
    hidden = hide(late, run, claimed)
    items = late.source.read(run.id, hidden)
    late.ledger.release(late.runner)
    move.abort()
    for one in (source, target):
        one.rewind()
        one.persistence.install()

    with pytest.raises(MigrationFailed, match="is shut at"):
        late.target.deliver(run.id, hidden, items)

    assert pending(move.target) == []


def test_an_upgrade_that_was_cut_off_is_run_again(pair: tuple[Move, Before, Before]) -> None:
    move, source, target = pair
    move.source.store_many(some(3))
    driver = move.parts()
    run = move.begin(driver)
    assert claim_next_batch(driver, run) is not None
    before = source.claims()

    for _time in range(2):
        for one in (source, target):
            one.rewind(drop=False)  # as MySQL leaves it: the tables, and some rows in both
            one.persistence.install()

    assert source.claims() == before
    assert (source.kinds(), target.kinds()) == (["migration"], [])
    driver.close()


def test_runs_of_pipeline_jobs_stay_as_they_are(pair: tuple[Move, Before, Before]) -> None:
    _move, source, _target = pair
    jobs = {
        "run_id": "job-1",
        "kind": "archive",
        "state": "running",
        "created": 7,
        "parameters": '{"to": "a"}',
        "runner": "a process",
    }
    with source.persistence.database.begin() as connection:
        connection.execute(insert(source.tables.runs), jobs)
    source.rewind()

    source.persistence.install()

    with source.persistence.database.begin() as connection:
        (row,) = connection.execute(select(source.tables.runs)).mappings()
        connection.execute(delete(source.tables.runs))
    assert {name: row[name] for name in jobs} == jobs


def test_the_upgrade_waits_for_a_process_that_claims(
    postgres_url: str, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    persistence = SqlPersistence(postgres_url, prefix=f"{unique}_", settings=SETTINGS)
    persistence.install()
    before = Before(persistence, f"{unique}_")
    move = Move((persistence, persistence), unique)
    driver = move.parts()
    run_row = {"run_id": "r", "kind": "migration", "state": "running", "created": 1}
    with persistence.database.begin() as connection:
        connection.execute(
            insert(before.tables.runs), {**run_row, "parameters": "{}", "runner": "old"}
        )
    before.rewind()
    upgrade = threading.Thread(target=persistence.install, daemon=True)

    with persistence.database.begin() as claiming:
        claiming.execute(update(before.tables.runs).values(runner="old"))  # locks the run
        upgrade.start()
        upgrade.join(2.5)
        assert upgrade.is_alive()
    upgrade.join(SOON)

    persistence.check()
    with persistence.database.read() as connection:
        assert connection.execute(select(before.tables.runs.c.runner)).scalar_one() is None
    driver.close()
    persistence.uninstall(unique, force=True)
    persistence.close()


def test_uninstall_drops_the_tables_of_claims_and_tokens(
    pair: tuple[Move, Before, Before],
) -> None:
    move, source, _target = pair
    move.source.store_many(some(3))
    driver = move.parts()
    run = move.begin(driver)
    batch = claim_next_batch(driver, run)
    assert batch is not None
    assert batch.state is BatchState.PENDING
    driver.abort(run)
    driver.close()

    assert source.persistence.uninstall(move.endpoint, force=True)

    with source.persistence.database.read() as connection:
        found = connection.dialect.get_table_names(connection)
    assert not [name for name in found if name.startswith(source.prefix)]
