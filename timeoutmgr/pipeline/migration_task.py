"""What a task of ``migrate`` does: batch after batch, by the steps of ``timeoutmgr.migration``."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from timeoutmgr.errors import ConfigurationError, StorageUnavailable, TimeoutManagerError
from timeoutmgr.migration import Batch, Parts, Run, Terms, Window
from timeoutmgr.migration.claiming import next_in_hand
from timeoutmgr.migration.moving import move
from timeoutmgr.migration.places import NATIVE, Asked, Place, Site
from timeoutmgr.pipeline.stores import url_of
from timeoutmgr.settings_file import configuration_from

OUTCOME: Final = "batches BIGINT, timeouts BIGINT, error STRING, says STRING"
"""What a task answers, as Spark spells it."""
Outcome: TypeAlias = tuple[int, int, str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """From where to where, by names that the workers can open as well.

    *settings* is the endpoint's settings file, or empty for those of the environment. The ``url``
    of a place is None (the endpoint's own store), ``native``, a settings file, or a word NAME whose
    URL is in TIMEOUTMGR_STORE_NAME.
    """

    settings: str
    source: Place = field(default_factory=Place)
    target: Place = field(default_factory=Place)
    window: Window = field(default_factory=Window)
    batch: int = 5_000


@dataclass(frozen=True, slots=True)
class Opened:
    """One endpoint's migration, ready."""

    parts: Parts
    terms: Terms


@contextmanager
def opened(
    ends: Ends, endpoints: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> Iterator[list[Opened]]:
    """Lend the migration of each of *endpoints*; without any, that of the settings' endpoint."""
    source, target = _resolved(ends.source, environ), _resolved(ends.target, environ)
    if source.is_levels:
        raise ConfigurationError(
            "delay levels are drained by one process, in their order: "
            "`timeoutmgr migrate run --from native`"
        )
    path = Path(ends.settings) if ends.settings else None
    settings = configuration_from(path, environ).settings()
    asked = Asked(source=source, target=target, window=ends.window, batch=ends.batch)
    with ExitStack() as stack:
        stack.callback(settings.transport.close)
        if settings.persistence is not None:
            stack.callback(settings.persistence.close)
        found = []
        for endpoint in endpoints or (settings.name,):
            site = Site(settings, asked, endpoint)
            stack.callback(site.close)
            parts = site.parts()
            assert isinstance(parts, Parts), "what drains levels was refused"
            stack.callback(parts.close)
            found.append(Opened(parts, site.terms(parts)))
        yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What one task moved, and the *error* that ended it: its name, and what it *says*."""

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
    run: Run

    def __call__(self, _task: int) -> Outcome:
        """Return what OUTCOME names."""
        found = self.pull()
        return found.batches, found.timeouts, found.error, found.says

    def pull(self) -> Pulled:
        """Open connections of the task's own, and move what can be claimed."""
        try:
            with opened(self.ends, (self.run.terms.endpoint,)) as [one]:
                return pull(one.parts, self.run)
        except TimeoutManagerError as error:
            return _ended_by(error, Pulled(batches=0, timeouts=0))


def pull(parts: Parts, run: Run) -> Pulled:
    """Move the first batch that is in nobody's hands, again and again, until there is none.

    An error of ours is an answer and not raised: Spark would try again what was looked at, and
    send it once more.
    """
    so_far = Pulled(batches=0, timeouts=0)
    try:
        while (done := move_next(parts, run)) is not None:
            so_far = Pulled(batches=so_far.batches + 1, timeouts=so_far.timeouts + done.taken)
    except TimeoutManagerError as error:
        return _ended_by(error, so_far)
    return so_far


def move_next(parts: Parts, run: Run) -> Batch | None:
    """Move the first batch that is in nobody's hands; None where there is none."""
    batch = next_in_hand(parts, run)
    if batch is None:
        return None
    try:
        return move(parts, run, batch)
    except TimeoutManagerError:
        # Or every other task would try it too. Where the ledger is away they cannot either.
        with suppress(StorageUnavailable):
            parts.ledger.set_aside(run, batch)
        raise


def _ended_by(error: TimeoutManagerError, so_far: Pulled) -> Pulled:
    return replace(so_far, error=type(error).__name__, says=str(error))


def _resolved(place: Place, environ: Mapping[str, str]) -> Place:
    """Return *place* with the URL that its name stands for, here."""
    name = place.url
    if name is None or name == NATIVE or name.endswith(".toml"):
        return place
    return replace(place, url=url_of(name, environ))
