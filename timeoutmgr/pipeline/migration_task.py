"""A task of ``migrate``: batch after batch, by the steps of ``timeoutmgr.migration``."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from timeoutmgr.errors import ConfigurationError, StorageUnavailable, TimeoutManagerError
from timeoutmgr.migration import Batch, MigrationRun, Participants, Terms, Window
from timeoutmgr.migration.batch_claim import claim_next_batch
from timeoutmgr.migration.batch_step import move
from timeoutmgr.migration.places import NATIVE, LocationSpec, MigrationContext, MigrationRequest
from timeoutmgr.pipeline.stores import url_of
from timeoutmgr.settings.file import configuration_from

OUTCOME: Final = "batches BIGINT, timeouts BIGINT, error STRING, says STRING"
"""The answer of a task, as Spark spells its type."""
Outcome: TypeAlias = tuple[int, int, str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """From where to where, by names that the workers can open as well.

    *settings* is the endpoint's settings file, or empty for the environment's settings. The ``url``
    of a place is None (the endpoint's own store), ``native``, a settings file, or a word NAME whose
    URL is in TIMEOUTMGR_STORE_NAME.
    """

    settings: str
    source: LocationSpec = field(default_factory=LocationSpec)
    target: LocationSpec = field(default_factory=LocationSpec)
    window: Window = field(default_factory=Window)
    batch: int = 5_000


@dataclass(frozen=True, slots=True)
class TaskMigration:
    """One endpoint's migration, ready."""

    parts: Participants
    terms: Terms


@contextmanager
def opened(
    ends: Ends, endpoints: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> Iterator[list[TaskMigration]]:
    """Lend the migration of each of *endpoints*; without any, that of the settings' endpoint."""
    source, target = _resolved(ends.source, environ), _resolved(ends.target, environ)
    if source.is_levels:
        raise ConfigurationError(
            "delay levels are drained by one process, in their order: "
            "`timeoutmgr migrate run --from native`"
        )
    path = Path(ends.settings) if ends.settings else None
    settings = configuration_from(path, environ).settings()
    asked = MigrationRequest(source=source, target=target, window=ends.window, batch=ends.batch)
    with ExitStack() as stack:
        stack.callback(settings.transport.close)
        if settings.persistence is not None:
            stack.callback(settings.persistence.close)
        found = []
        for endpoint in endpoints or (settings.name,):
            site = MigrationContext(settings, asked, endpoint)
            stack.callback(site.close)
            parts = site.parts()
            assert isinstance(parts, Participants), "what drains levels was refused"
            stack.callback(parts.close)
            found.append(TaskMigration(parts, site.terms(parts)))
        yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBatches:
    """The work of a task, and the name of the *error* that ended it, with its text *says*."""

    batches: int
    timeouts: int
    error: str | None = None
    says: str | None = None


@dataclass(frozen=True, slots=True)
class Mover:
    """The function of a task: it moves batches of *run* until none is left to be claimed.

    Which task moves which batch is settled in the ledger, not by Spark. So a task that is tried
    again, or runs twice at once, is one more that asks for the next.
    """

    ends: Ends
    run: MigrationRun

    def __call__(self, _task: int) -> Outcome:
        """Return the fields of OUTCOME."""
        found = self.pull()
        return found.batches, found.timeouts, found.error, found.says

    def pull(self) -> MovedBatches:
        """Open connections of the task's own, and move all batches that can be claimed."""
        try:
            with opened(self.ends, (self.run.terms.endpoint,)) as [one]:
                return pull(one.parts, self.run)
        except TimeoutManagerError as error:
            return _ended_by(error, MovedBatches(batches=0, timeouts=0))


def pull(parts: Participants, run: MigrationRun) -> MovedBatches:
    """Move the first batch that is not claimed, again and again, until none is left.

    Our errors are returned, not raised: Spark would repeat the task, and send the messages of its
    batch again.
    """
    so_far = MovedBatches(batches=0, timeouts=0)
    try:
        while (done := move_next(parts, run)) is not None:
            so_far = MovedBatches(
                batches=so_far.batches + 1, timeouts=so_far.timeouts + done.collected
            )
    except TimeoutManagerError as error:
        return _ended_by(error, so_far)
    return so_far


def move_next(parts: Participants, run: MigrationRun) -> Batch | None:
    """Move the first batch that is not claimed; return None if none is left."""
    batch = claim_next_batch(parts, run)
    if batch is None:
        return None
    try:
        return move(parts, run, batch)
    except TimeoutManagerError:
        # Or every other task would try it too. Where the ledger is away they cannot either.
        with suppress(StorageUnavailable):
            parts.ledger.set_aside(run, batch)
        raise


def _ended_by(error: TimeoutManagerError, so_far: MovedBatches) -> MovedBatches:
    return replace(so_far, error=type(error).__name__, says=str(error))


def _resolved(place: LocationSpec, environ: Mapping[str, str]) -> LocationSpec:
    """Return *place* with the URL that its name stands for, here."""
    name = place.url
    if name is None or name == NATIVE or name.endswith(".toml"):
        return place
    return replace(place, url=url_of(name, environ))
