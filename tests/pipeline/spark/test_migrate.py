"""``migrate`` on Spark: the same ledger as in plain Python, after every death and resumption."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chaos.forkserver_client import ForkServer
from tests.crash.cases import Crash
from tests.crash.site import Worker
from tests.migration.levels import queues_of
from tests.pipeline.migrations import BATCH, ENDPOINT, due_tomorrow, dying, ends, fill, pending
from timeoutmgr.errors import MigrationRefused
from timeoutmgr.migration import MigrationRunState, begin
from timeoutmgr.migration.places import LocationSpec
from timeoutmgr.native.infrastructure import delay_topology
from timeoutmgr.native.names import CELERY
from timeoutmgr.pipeline.jobs.migrate import Ends, MigrateOptions, Mover, in_tasks, migrate, opened
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.testing.signals import eventually
from timeoutmgr.transport.kombu_transport import KombuTransport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AMOUNT = 6 * BATCH
StoreOf = Callable[[str], Store]


class Plain:
    """The plain runner, in processes of its own, between two stores in one database."""

    def __init__(self, fork_server: ForkServer, source: Store, target: Store, folder: Path) -> None:
        self._fork_server, self._folder = fork_server, folder
        self._given: dict[str, Any] = {
            "worker": "tests.crash.mover",
            "url": source.database.url.render_as_string(hide_password=False),
            "prefixes": [
                one.tables.timeouts.name.removesuffix("timeouts") for one in (source, target)
            ],
            "endpoint": ENDPOINT,
            "batch": BATCH,
            "aborts": False,
        }

    def run(self, crash: Crash | None = None) -> None:
        """Run the whole migration in a process, which dies at *crash*; return after its end."""
        output = self._folder / f"{secrets.token_hex(4)}.txt"
        worker = Worker(self._fork_server, self._given, output, crash)
        worker.wait_until_it_ends()
        assert worker.was_killed == (crash is not None), worker.said
        assert "Traceback" not in worker.said, worker.said


def test_spark_continues_a_run_that_plain_python_began(
    spark: SparkSession, store_of: StoreOf, fork_server: ForkServer, tmp_path: Path
) -> None:
    source, target = store_of("postgres"), store_of("postgres")
    stored = fill(source, due_tomorrow(AMOUNT))
    Plain(fork_server, source, target, tmp_path).run(Crash("migration.delivered", 2))
    reported: list[str] = []

    options = MigrateOptions(ends=ends(source, target), tasks=2)
    [report] = migrate(spark, options, progress=reported.append)

    assert pending(target) == stored
    assert pending(source) == []
    assert (report.batches, report.batches_done, report.collected) == (6, 6, AMOUNT)
    assert (report.new, report.known, report.verified) == (AMOUNT - BATCH, BATCH, True)
    # A longer run also reports its progress between these lines.
    assert reported[:2] == [
        "looking for problems",
        f"run {report.run}: {AMOUNT} timeouts in 6 batches",
    ]
    assert reported[-1] == "verifying"


def test_a_run_that_died_in_spark_is_finished_by_plain_python(
    spark: SparkSession, store_of: StoreOf, fork_server: ForkServer, tmp_path: Path
) -> None:
    source, target = store_of("postgres"), store_of("postgres")
    stored = fill(source, due_tomorrow(AMOUNT))
    given = ends(source, target)
    with opened(given) as [one]:
        run = begin(one.parts, one.terms, lambda: secrets.token_hex(6))
        # Every process of a task dies, also at each repeat: Spark gives the task up.
        with pytest.raises(Exception, match=r"crashed|exited unexpectedly"):
            in_tasks(spark, dying(Mover(given, run), "migration.delivered", None), 1)
        states = [batch.state.value for batch in one.parts.ledger.batches(run.id)]

    Plain(fork_server, source, target, tmp_path).run()

    with opened(given) as [one]:
        [ended] = one.parts.ledger.runs()
    assert states == ["sending", *["pending"] * 5]
    assert pending(target) == stored
    assert pending(source) == []
    assert ended.state is MigrationRunState.COMPLETED
    assert ended.report is not None
    assert (ended.report["known"], ended.report["verified"]) == (BATCH, True)


def test_a_task_that_is_killed_is_tried_again_and_nothing_is_there_twice(
    spark: SparkSession, store_of: StoreOf, tmp_path: Path
) -> None:
    source, target = store_of("postgres"), store_of("postgres")
    stored = fill(source, due_tomorrow(AMOUNT))
    given = ends(source, target)
    with opened(given) as [one]:
        run = begin(one.parts, one.terms, lambda: secrets.token_hex(6))
        in_tasks(spark, dying(Mover(given, run), "migration.sending", tmp_path / "died"), 2)

    [report] = migrate(spark, MigrateOptions(ends=given))

    assert (tmp_path / "died").exists()
    assert pending(target) == stored
    assert (report.new, report.known, report.verified) == (AMOUNT, 0, True)


class Levels:
    """Delay levels of a test's own, and a queue."""

    def __init__(self, url: str, name: str) -> None:
        self.names = CELERY.prefixed(name)
        self.queue = f"{name}.billing"
        self._transport = KombuTransport(url)
        session: Any = self._transport.session()
        self._session = session
        self._session.create_queues([self.queue])
        self._session.declare(delay_topology(self.names, "classic"))

    def count(self) -> int:
        """Return the number of messages in the levels."""
        return sum(self._session.count(name) for name in queues_of(self.names))

    def close(self) -> None:
        """Remove the levels and the queue."""
        self._session.remove(delay_topology(self.names, "classic"))
        self._session.delete_queues([self.queue])
        self._session.close()
        self._transport.close()


def test_a_store_goes_into_the_levels_though_a_task_is_killed(
    spark: SparkSession, store_of: StoreOf, rabbitmq_url: str, unique: str, tmp_path: Path
) -> None:
    source = store_of("postgres")
    settings = Path(source.name)
    settings.write_text(settings.read_text().replace("memory://", rabbitmq_url))
    place = LocationSpec(url="native", names="celery", names_prefix=unique)
    given = Ends(settings=source.name, target=place, batch=BATCH)
    with closing(Levels(rabbitmq_url, unique)) as levels:
        fill(source, due_tomorrow(AMOUNT, destination=levels.queue))
        with opened(given) as [one]:
            run = begin(one.parts, one.terms, lambda: secrets.token_hex(6))
            task = dying(Mover(given, run), "migration.delivered", tmp_path / "died")
            in_tasks(spark, task, 2)
        [report] = migrate(spark, MigrateOptions(ends=given))

        # Messages that were sent when the process died are sent again, as the report says.
        assert (report.new, report.repeated, report.verified) == (AMOUNT, BATCH, True)
        assert pending(source) == []
        eventually(lambda: levels.count() == AMOUNT + BATCH, "all are in the levels", 10)


def test_a_problem_moves_nothing(
    spark: SparkSession, store_of: StoreOf, rabbitmq_url: str, unique: str
) -> None:
    source = store_of("sqlite")
    settings = Path(source.name)
    settings.write_text(settings.read_text().replace("memory://", rabbitmq_url))
    stored = fill(source, due_tomorrow(3, destination=f"{unique}.gone"))
    given = Ends(
        settings=source.name, target=LocationSpec(url="native", names="celery", names_prefix=unique)
    )

    with pytest.raises(MigrationRefused, match="there is no such queue for 3 timeouts"):
        migrate(spark, MigrateOptions(ends=given))

    assert pending(source) == stored
