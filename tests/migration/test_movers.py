"""Processes that move the batches of one run side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.migration.conftest import SETTINGS, Move, pending, some
from tests.migration.levels import names_of
from tests.migration.place import Place
from tests.persistence.making import SetClock
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import (
    ConfigurationError,
    MigrationFailed,
    MigrationRefused,
    StorageConflict,
    StorageUnavailable,
    TimeoutManagerError,
    TransportUnavailable,
)
from timeoutmgr.message.validation import Limits
from timeoutmgr.migration import Batch, BatchState, Item, Participants, Source, batch_step
from timeoutmgr.migration.levels.target import LevelsTarget
from timeoutmgr.migration.movers import Movers, move_batches, move_next
from timeoutmgr.migration.run import move_all
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.transport.kombu_transport import KombuTransport


@dataclass(frozen=True, slots=True)
class Places:
    """Opens the places of a move in another process; that process may be told where to die."""

    url: str
    endpoint: str
    dies_at: str = ""
    marker: Path = Path()

    @classmethod
    def of(cls, move: Move) -> Places:
        """Return the places of *move*, by name."""
        url = move.source_persistence.database.url.render_as_string(hide_password=False)
        return cls(url, move.endpoint)

    @contextmanager
    def __call__(self) -> Iterator[Participants]:
        """Lend the participants as they are in this process."""
        killed_once(self.dies_at, self.marker)
        pair = [SqlPersistence(self.url, prefix=f"{end}_", settings=SETTINGS) for end in ENDS]
        with closing(pair[0]) as source, closing(pair[1]) as target:
            clock = SetClock()
            parts = Participants(
                source=source.migration_source(self.endpoint, clock),
                target=target.migration_target(self.endpoint, clock),
                ledger=source.migration_ledger(self.endpoint, clock),
                runner=f"{self.endpoint}-{os.getpid()}",
                clock=clock,
            )
            with closing(parts):
                yield parts


ENDS = ("from", "into")


@dataclass(frozen=True, slots=True)
class PlacesIntoLevels:
    """Opens a store and delay levels in another process; that process may be told where to die."""

    url: str
    endpoint: str
    broker: str
    stem: str
    dies_at: str
    marker: Path

    @contextmanager
    def __call__(self) -> Iterator[Participants]:
        """Lend the participants as they are in this process."""
        killed_once(self.dies_at, self.marker)
        clock = SystemClock()
        with (
            closing(SqlPersistence(self.url)) as store,
            closing(KombuTransport(self.broker)) as transport,
        ):
            parts = Participants(
                source=store.migration_source(self.endpoint, clock, queues_only=True),
                target=LevelsTarget(transport, names_of(self.stem), Limits(), clock),
                ledger=store.migration_ledger(self.endpoint, clock),
                runner=f"{self.endpoint}-{os.getpid()}",
            )
            with closing(parts):
                yield parts


def killed_once(dies_at: str, marker: Path) -> None:
    """Have this process killed at the crash point *dies_at*, unless another was before it."""

    def reach(point: str) -> None:
        if point != dies_at:
            return
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    pytest.MonkeyPatch().setattr(batch_step, "reach", reach)


def test_processes_move_each_timeout_once(moves: Move) -> None:
    given = some(24)
    moves.source.store_many(given)
    moved: list[Batch] = []
    with closing(moves.parts()) as parts:
        movers = Movers(count=2, opener=Places.of(moves))
        report = move_all(parts, moves.terms(parts), moved.append, movers)

    assert sorted(batch.no for batch in moved) == [*range(8)]
    assert sum(batch.collected for batch in moved) == 24
    assert (report.new, report.known, report.repeated, report.verified) == (24, 0, 0, True)
    assert pending(moves.target) == given
    assert pending(moves.source) == []


def test_the_batch_of_a_killed_process_is_moved_by_the_holder_of_the_run(
    moves: Move, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = some(12)
    moves.source.store_many(given)
    places = replace(Places.of(moves), dies_at="migration.sending", marker=tmp_path / "died")
    with closing(moves.parts()) as parts:
        report = move_all(parts, moves.terms(parts), movers=Movers(count=2, opener=places))

    assert places.marker.exists()
    assert "ended with code -9" in caplog.text
    assert (report.new, report.known, report.verified) == (12, 0, True)
    assert pending(moves.target) == given
    assert pending(moves.source) == []


def test_of_a_killed_process_one_batch_is_sent_into_the_levels_again_and_reported(
    place: Place, sqlite_url: str, rabbitmq_url: str, tmp_path: Path
) -> None:
    place.store.store_many(place.some(8))
    opener = PlacesIntoLevels(
        sqlite_url,
        place.name,
        rabbitmq_url,
        place.names.delivery.removesuffix(".delay-delivery"),
        "migration.delivered",
        tmp_path / "died",
    )
    with closing(place.into_levels()) as parts:
        run = place.begin(parts)
        Movers(count=2, opener=opener).move(run, 4, lambda _batch: None)
        report = parts.migrate(run)

    assert opener.marker.exists()
    assert (report.new, report.repeated, report.verified) == (8, 2, True)
    assert pending(place.store) == []
    place.wait_for_levels(place.names, 10)


def test_a_mover_takes_the_nearest_due_first(move: Move) -> None:
    move.source.store_many(some(9))
    with closing(move.parts()) as parts:
        run = move.begin(parts)
        moved = [batch.no for batch in iter(partial(move_next, parts, run), None)]

    assert moved == [0, 1, 2]


class Forgetful:
    """A source that reads nothing."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, _run_id: str, _batch: Batch) -> list[Item]:
        """Return nothing."""
        return []


def test_what_a_mover_failed_at_is_left_by_the_others_and_moved_by_the_next_run(move: Move) -> None:
    move.source.store_many(some(9))
    with closing(move.parts()) as parts:
        run = move.begin(parts)
        with closing(move.parts()) as other:
            forgetful: Any = Forgetful(other.source)
            with pytest.raises(MigrationFailed, match="3 timeouts were hidden and 0 read"):
                move_next(replace(other, source=forgetful), run)
        with closing(move.parts()) as other:
            moved = [batch.no for batch in iter(partial(move_next, other, run), None)]
        states = [each.state for each in parts.ledger.batches(run.id)]
        report = parts.migrate(run)

    assert moved == [1, 2]
    assert states == [BatchState.HIDDEN, BatchState.DONE, BatchState.DONE]
    assert (report.new, report.verified) == (9, True)


def test_a_mover_of_a_run_that_another_process_has_acquired_moves_nothing(move: Move) -> None:
    given = some(3)
    move.source.store_many(given)
    with closing(move.parts()) as parts:
        run = move.begin(parts)
    with closing(move.parts()) as other:
        other.ledger.acquire(run.id, other.runner)
        with (
            closing(move.parts()) as mover,
            pytest.raises(MigrationRefused, match="another process works at run"),
        ):
            move_next(mover, run)

    assert pending(move.source) == given


def test_a_mover_whose_holder_has_ended_moves_no_further_batch(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    move.source.store_many(some(9))
    holder = multiprocessing.get_context("spawn").Process(target=signal.pause, daemon=True)
    holder.start()
    monkeypatch.setattr("multiprocessing.parent_process", lambda: holder)
    moved: list[Batch] = []
    with closing(move.parts()) as parts:
        run = move.begin(parts)

        def end_holder(batch: Batch) -> None:
            moved.append(batch)
            holder.kill()
            holder.join()

        error = move_batches(Places.of(move), run, end_holder)

    assert error is None
    assert [batch.no for batch in moved] == [0]


@dataclass(frozen=True, slots=True)
class Closed:
    """An opener that fails."""

    error: TimeoutManagerError

    def __call__(self) -> Any:
        """Fail."""
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigurationError("there is no such table"), MigrationFailed),
        (StorageConflict("a deadlock"), StorageUnavailable),
        (TransportUnavailable("the broker is away"), TransportUnavailable),
    ],
)
def test_an_error_of_a_process_ends_the_command_and_the_run_stays_open(
    move: Move, error: TimeoutManagerError, kind: type[TimeoutManagerError]
) -> None:
    given = some(12)
    move.source.store_many(given)
    with closing(move.parts()) as parts:
        with pytest.raises(kind, match=rf"2 of 2 processes of run .* {error}") as ended:
            move_all(parts, move.terms(parts), movers=Movers(count=2, opener=Closed(error)))
        assert parts.ledger.open_run() is not None

    assert ended.type is kind
    assert pending(move.source) == given


def test_no_more_processes_start_than_batches_are_left(move: Move) -> None:
    move.source.store_many(some(3))
    opener = Closed(ConfigurationError("started"))
    with closing(move.parts()) as parts, pytest.raises(MigrationFailed, match="1 of 1 processes"):
        move_all(parts, move.terms(parts), movers=Movers(count=7, opener=opener))


def test_no_processes_are_refused(move: Move) -> None:
    with pytest.raises(ConfigurationError, match="at least 1, got 0"):
        Movers(count=0, opener=Places.of(move))
