"""A task of ``migrate`` without Spark, after the round trip by which Spark sends it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pyspark import cloudpickle

from tests.pipeline.migrations import BATCH, due_tomorrow, ends, fill, pending
from timeoutmgr.errors import ConfigurationError, MigrationFailed, MigrationRefused
from timeoutmgr.migration import (
    Batch,
    BatchState,
    Item,
    MigrationRun,
    MigrationRunState,
    Source,
    begin,
)
from timeoutmgr.migration.places import LocationSpec
from timeoutmgr.pipeline.jobs.migrate import (
    Ends,
    MigrateOptions,
    MovedBatches,
    Mover,
    TaskMigration,
    opened,
    pull,
    refuse_errors,
)
from timeoutmgr.pipeline.stores import Store

StoreOf = Callable[[str], Store]
KINDS = ("sqlite", "postgres", "mysql")


def begun(given: Ends, one: TaskMigration) -> Mover:
    """Begin a run; return the task as a worker of Spark unpacks it."""
    run = begin(one.parts, one.terms, lambda: secrets.token_hex(6))
    made: Mover = cloudpickle.loads(packed(Mover(given, run)))
    return made


def packed(mover: Mover) -> bytes:
    """Return the bytes that go to the workers."""
    made: bytes = cloudpickle.dumps(mover)  # type: ignore[no-untyped-call]  # has no types
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_side_by_side_move_each_timeout_once(store_of: StoreOf, kind: str) -> None:
    source, target = store_of(kind), store_of(kind)
    stored = fill(source, due_tomorrow(8 * BATCH))
    given = ends(source, target)

    with opened(given) as [one]:
        mover = begun(given, one)
        with ThreadPoolExecutor(3) as tasks:
            found = [*tasks.map(lambda _task: mover.pull(), range(3))]
        refuse_errors(mover.run, found)
        report = one.parts.migrate(mover.run)

    assert sum(each.batches for each in found) == 8
    assert sum(each.timeouts for each in found) == len(stored)
    assert pending(target) == stored
    assert pending(source) == []
    assert (report.state, report.new, report.known) == (MigrationRunState.COMPLETED, len(stored), 0)
    assert report.verified


def test_a_task_answers_with_the_batches_that_it_moved(store_of: StoreOf) -> None:
    source, target = store_of("sqlite"), store_of("sqlite")
    fill(source, due_tomorrow(BATCH + 1))
    given = ends(source, target)

    with opened(given) as [one]:
        answer = begun(given, one)(0)

    assert answer == (2, BATCH + 1, None, None)


def test_one_task_takes_the_nearest_due_first(store_of: StoreOf) -> None:
    source, target = store_of("sqlite"), store_of("sqlite")
    fill(source, due_tomorrow(3 * BATCH))
    given = ends(source, target)
    order: list[int] = []

    with opened(given) as [one]:
        mover = begun(given, one)
        ledger = one.parts.ledger
        write = ledger.move_batch

        def noting(run_id: str, batch: Batch, transaction: object = None) -> None:
            order.extend([batch.no] if batch.state is BatchState.HIDDEN else [])
            write(run_id, batch, transaction)  # type: ignore[arg-type]  # passed on as it came

        ledger.move_batch = noting  # type: ignore[method-assign]  # to be noted
        pull(one.parts, mover.run)

    assert order == [0, 1, 2]


def test_a_failed_batch_is_an_answer_and_no_other_task_repeats_it(store_of: StoreOf) -> None:
    source, target = store_of("sqlite"), store_of("sqlite")
    fill(source, due_tomorrow(3 * BATCH))
    given = ends(source, target)

    with opened(given) as [one]:
        mover = begun(given, one)
        with opened(given) as [other]:  # a task whose source loses the rows that it has just hidden
            source_: Any = Forgetful(other.parts.source)
            first = pull(replace(other.parts, source=source_), mover.run)
        second = mover.pull()
        states = [each.state for each in one.parts.ledger.batches(mover.run.id)]
        with pytest.raises(MigrationFailed, match=r"1 of 2 tasks of run .* 5 timeouts were hidden"):
            refuse_errors(mover.run, [first, second])
        report = one.parts.migrate(mover.run)  # as the next run does

    assert (first.batches, first.error) == (0, "MigrationFailed")
    assert (second.batches, second.error) == (2, None)
    assert states == [BatchState.HIDDEN, BatchState.DONE, BatchState.DONE]
    assert (report.new, report.verified) == (3 * BATCH, True)


class Forgetful:
    """A source that reads nothing."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, _run_id: str, _batch: Batch) -> list[Item]:
        """Return nothing."""
        return []


def test_a_task_of_a_run_that_another_took_over_moves_nothing(store_of: StoreOf) -> None:
    source, target = store_of("sqlite"), store_of("sqlite")
    stored = fill(source, due_tomorrow(BATCH))
    given = ends(source, target)

    with opened(given) as [one]:
        mover = begun(given, one)
    with opened(given) as [other]:
        other.parts.ledger.acquire(mover.run.id, other.parts.runner)
        found = mover.pull()

    assert found.error == "MigrationRefused"
    assert pending(source) == stored
    with pytest.raises(MigrationRefused, match="another process works at run"):
        refuse_errors(mover.run, [found])


def test_a_worker_without_the_variable_of_a_store_says_so(
    store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = store_of("sqlite"), store_of("sqlite")
    stored = fill(source, due_tomorrow(BATCH))
    prefix = target.tables.timeouts.name.removesuffix("timeouts")
    monkeypatch.setenv("TIMEOUTMGR_STORE_NEW_ONE", str(target.database.url))
    given = replace(ends(source, target), target=LocationSpec(url="new-one", prefix=prefix))

    with opened(given) as [one]:
        mover = begun(given, one)
        monkeypatch.delenv("TIMEOUTMGR_STORE_NEW_ONE")
        without = mover.pull()
        monkeypatch.setenv("TIMEOUTMGR_STORE_NEW_ONE", str(target.database.url))
        assert mover.pull().batches == 1

    assert without.error == "ConfigurationError"
    assert "TIMEOUTMGR_STORE_NEW_ONE is not set" in str(without.says)
    assert pending(target) == stored


def test_no_address_is_sent_to_the_workers(
    store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = store_of("sqlite")
    monkeypatch.setenv("TIMEOUTMGR_STORE_BROKER", "amqp://guest:s3cret@localhost//")
    given = ends(source, "broker")

    with opened(given) as [one]:
        sent = packed(Mover(given, _planned(one)))

    assert b"s3cret" not in sent


def _planned(one: TaskMigration) -> MigrationRun:
    return one.parts.ledger.create("r", one.terms, [], one.parts.runner)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"source": LocationSpec(url="native")}, "drained by one process"),
        ({"target": LocationSpec(url="sqlite:///x.db")}, "a store is named by a word"),
        ({"target": LocationSpec(url="nowhere")}, "TIMEOUTMGR_STORE_NOWHERE is not set"),
        ({"target": LocationSpec()}, "source and target are the same"),
        ({"target": LocationSpec(url="other.toml", prefix="x_")}, "leave prefix and schema out"),
    ],
)
def test_ends_that_do_not_fit_are_refused(
    store_of: StoreOf, given: dict[str, LocationSpec], why: str
) -> None:
    source = store_of("sqlite")
    wrong = replace(ends(source, source), **given)  # type: ignore[arg-type]  # of all fields

    with pytest.raises(ConfigurationError, match=why), opened(wrong):
        pass


def test_no_tasks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="tasks must be positive, got 0"):
        MigrateOptions(ends=Ends(settings=""), tasks=0)


def test_successful_tasks_raise_no_error(store_of: StoreOf) -> None:
    source, target = store_of("sqlite"), store_of("sqlite")
    with opened(ends(source, target)) as [one]:
        refuse_errors(_planned(one), [MovedBatches(batches=1, timeouts=1)])
