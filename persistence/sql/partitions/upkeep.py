"""Upkeep of the partitions of the pending timeouts, one short step at a time.

Any process may do it, and all try. Only performance depends on it: if no user may change tables,
the ranges of timeouts become coarser.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, exc, text

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Layout
from timeoutmgr.database.failures import is_right_missing
from timeoutmgr.errors import StorageConflict, StorageUnavailable
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.persistence.sql.context import SqlSettings, StoreContext

from . import conversion as replacing
from .catalog import ALL, Change, Ranged, Whole, fresh, joined, missing, over, split
from .conversion import CopiesLost, Copying, TooLong

logger = logging.getLogger(__name__)

_CHECK_AGAIN: Final = 3_600.0
"""Seconds between two checks while there is nothing to do: ranges are cut a week ahead."""
_INSTALLING: Final = "10s"
_TRIES: Final = 10
"""Consecutive conflicts after which the table is left alone until the next call."""


class Partitions:
    """Maintains the partitions of one installation; not safe for concurrent threads."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._whole = Whole(context.database, context.tables.timeouts)
        self._copying: Copying | None = None
        self._next_check = float("-inf")
        self._has_warned = False
        self._conflicts = 0
        self.missing: int | None = None
        """Partitions that were missing at the last check; None before it, or without partitions."""

    @property
    def rests(self) -> bool:
        """Whether a recent check found nothing to do."""
        return self._context.clock.monotonic() < self._next_check

    def step(self) -> bool:
        """Do the next step; return whether there is more to do now.

        Raises StorageUnavailable. If other transactions block the step, it is left for later.
        """
        context = self._context
        if context.database.dialect.name != "postgresql" or context.settings.partitions == "off":
            return False
        if self.rests:
            return False
        try:
            more = self._go_on(self._copying) if self._copying is not None else self._begin()
            self._conflicts = 0
            return more
        except StorageConflict as error:
            return self._give_way(error)
        except StorageUnavailable as error:
            denied = error.__cause__
            if not isinstance(denied, exc.DBAPIError) or not is_right_missing(denied):
                raise
            self._warn(str(denied.orig).strip())
            return self._rest()

    def _give_way(self, error: StorageConflict) -> bool:
        """Leave a step for later; return whether it may be tried again soon."""
        logger.debug(
            "partition upkeep waits for the next run: %s",
            on_one_line(error),
            extra=self._fields("partition_upkeep_waits"),
        )
        if isinstance(error, CopiesLost):
            self._copying = None
        elif isinstance(error, TooLong) and self._copying is not None:
            self._copying = self._copying.smaller()
        self._conflicts = (self._conflicts + 1) % _TRIES
        return self._conflicts > 0

    def _begin(self) -> bool:
        context = self._context
        with replacing.unhurried(self._whole) as (connection, ranged):
            if ranged is None or not ranged.known:
                return self._rest()
            now = context.now(connection)
            self.missing = missing(ranged.ranges, now)
            change = self._change(connection, ranged, now)
            stale = change is None and replacing.has_copies(connection, ranged)
            few = change is not None and replacing.holds_few(
                connection, ranged, change.old, replacing.FEW
            )
        if change is None and not stale:
            return self._rest()
        if not ranged.may_change:
            self._warn(f"it may not create tables in schema {ranged.schema!r}, or is not the owner")
            return self._rest()
        if change is None:
            replacing.discard(self._whole)
        elif not few or not self._replaced(change):
            self._copying = replacing.prepare(self._whole, change)
        return True

    def _replaced(self, change: Change) -> bool:
        """Replace partitions at once; return false if they must be copied after all."""
        try:
            done = replacing.replace(self._whole, change)
        except TooLong:
            done = False
        if not done and len(change.old) > 1:
            raise StorageConflict("ranges that are past hold too much to join them now")
        return done

    def _change(self, connection: Connection, ranged: Ranged, now: Micros) -> Change | None:
        """Return the next change, or None."""
        if ranged.is_one and self._context.settings.partitions == "auto":
            # Rows of an older installation are moved only if the settings ask for it.
            is_empty = replacing.holds_few(connection, ranged, ranged.ranges, 0)
            return split(ranged.ranges, now) if is_empty else None
        change = split(ranged.ranges, now)
        if change is not None:
            return change
        past = over(ranged.ranges, now)
        while len(past) > 1:
            if replacing.holds_few(connection, ranged, past, replacing.FEW):
                return joined(past)
            past.pop()
        return None

    def _go_on(self, copying: Copying) -> bool:
        if not copying.done:
            self._copying = replacing.copy(self._whole, copying)
            return True
        if replacing.verify(self._whole, copying):
            replacing.swap(self._whole, copying)
        else:
            logger.error(
                "partition upkeep found copies missing and copies the partition again",
                extra=self._fields("partition_copies_lost"),
            )
            replacing.discard(self._whole)
        self._copying = None
        return True

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            logger.warning(
                "this database user cannot maintain the partitions of pending timeouts; "
                "later timeouts lie in coarser partitions: %s",
                on_one_line(reason),
                extra=self._fields("partition_right_missing"),
            )
            self._has_warned = True

    def _fields(self, event: str) -> Mapping[str, str]:
        return {"event": event, "endpoint": self._context.endpoint}

    def _rest(self) -> bool:
        self._next_check = self._context.clock.monotonic() + _CHECK_AGAIN
        return False


def lay_out(whole: Whole) -> None:
    """Create the ranges of a new or empty table; for installations.

    If that is impossible now, a running process does it later.
    """
    with replacing.unhurried(whole) as (connection, ranged):
        if ranged is None or not ranged.known or not ranged.is_one or not ranged.may_change:
            return
        if not replacing.holds_few(connection, ranged, ranged.ranges, 0):
            return
        now = int(connection.execute(text(f"SELECT {whole.database.dialect.now}")).scalar_one())
    try:
        # Nothing is stored yet, so hardly any transaction waits.
        change = Change(ranged.ranges, tuple(fresh(now)))
        replacing.replace(whole, change, most=0, at_most=_INSTALLING)
    except StorageConflict as error:
        logger.debug(
            "partition upkeep waits for a running process: %s",
            on_one_line(error),
            extra={"event": "partition_upkeep_waits"},
        )


def first_ranges(whole: Whole) -> str:
    """Return the SQL that gives a new, single-partition table the ranges for now."""
    schema, name = whole.timeouts.schema, whole.timeouts.name
    ranged = Ranged(schema, name, (ALL,), columns=(), known=True, may_change=True)
    change = Change((ALL,), tuple(fresh(SystemClock().now())))
    made = [*replacing.makes(ranged, change), f"DROP TABLE {ranged.of(ALL)}"]
    return "\n".join(["BEGIN;", "", *(f"{each};\n" for each in made), "COMMIT;", ""])


def layout(whole: Whole, settings: SqlSettings) -> Layout | None:
    """Return how *whole* is partitioned, and how it could be improved."""
    with replacing.unhurried(whole) as (_, ranged):
        if ranged is None:
            return None
    text, off = ranged.describe(), settings.partitions == "off"
    if not ranged.known or off:
        return Layout(text=text + (" (partitions = off)" if off else ""))
    if not ranged.may_change:
        remedy = (
            f"let this database user own {ranged.whole} and create tables in its schema, or set "
            "partitions = off: nobody else makes partitions ahead"
        )
        return Layout(text=text, remedy=remedy)
    if ranged.is_one and settings.partitions == "auto":
        remedy = "set partitions = convert to have it cut into ranges while it is in use"
        return Layout(text=text, remedy=remedy)
    return Layout(text=text)
