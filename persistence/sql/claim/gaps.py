"""The gaps between the claims in force, and the gaps with due keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, select

from timeoutmgr.contracts import Key
from timeoutmgr.database.arrays import NumberArray, TextArray
from timeoutmgr.message.instants import Micros
from timeoutmgr.persistence.sql.conditions import before_key, from_key
from timeoutmgr.persistence.sql.context import StoreContext

from .rows import Claim


@dataclass(frozen=True, slots=True)
class Gap:
    """Keys from *start* on and before *end*; None where no claim stands behind it."""

    start: Key
    end: Key | None


def gaps_between(start: Key, active: Sequence[Claim]) -> Iterator[Gap]:
    """Yield the gaps from *start* on between *active*, in order; the last gap has no end."""
    for claim in active:
        if start < claim.interval.first:
            yield Gap(start, claim.interval.first)
        start = max(start, behind(claim.interval.last))
    yield Gap(start, None)


def behind(key: Key) -> Key:
    """Return a key between *key* and the next that there can be: ids have no control signs."""
    return Key(key.due, key.id + "\x01")


class Gaps:
    """Picks the gaps that are worth a look.

    A drain has dozens of claims in force, and next to nothing between them. To ask PostgreSQL of
    each by itself would take longer than the chunk that is looked for.
    """

    def __init__(self, context: StoreContext, *, enabled: bool = True) -> None:
        can_ask = enabled and context.database.dialect.name == "postgresql"
        self._at_once: Final = _not_empty(context) if can_ask else None

    def with_due_keys(
        self, connection: Connection, gaps: Sequence[Gap], until: Micros
    ) -> Sequence[Gap]:
        """Return *gaps*, without gaps that are empty until *until* if that is cheap to find out."""
        *closed, last = gaps
        if self._at_once is None or len(closed) < 2:
            return gaps
        found = connection.execute(
            self._at_once,
            {
                "start_dues": [gap.start.due for gap in closed],
                "start_ids": [gap.start.id for gap in closed],
                "end_dues": [gap.end.due for gap in closed if gap.end],
                "end_ids": [gap.end.id for gap in closed if gap.end],
                "now": until,
            },
        )
        return [*(closed[number - 1] for number in sorted(found.scalars())), last]


def _not_empty(context: StoreContext) -> Select[Any]:
    """Return the statement that tells the numbers, from 1, of the gaps that hold something due.

    It finds the first row from the start of a gap on, and compares it with the end. As a bound of
    the search the end would not stop it within one instant, see ``conditions.OnKeys``.
    """
    timeouts = context.tables.timeouts
    arrays: Any = func.unnest(
        bindparam("start_dues", type_=NumberArray()),
        bindparam("start_ids", type_=TextArray()),
        bindparam("end_dues", type_=NumberArray()),
        bindparam("end_ids", type_=TextArray()),
    )
    gaps = arrays.table_valued(
        "start_due", "start_id", "end_due", "end_id", with_ordinality="number", name="gap"
    ).render_derived()
    first = (
        select(timeouts.c.due, timeouts.c.id)
        .where(
            timeouts.c.endpoint == context.endpoint,
            timeouts.c.hidden_by.is_(None),
            from_key(context, timeouts.c.due, timeouts.c.id, _pair(gaps, "start")),
            timeouts.c.due <= gaps.c.end_due,  # for the partitions behind it
        )
        .order_by(timeouts.c.due, timeouts.c.id)
        .limit(1)
        .lateral("first_row")
    )
    inside = and_(
        before_key(context, first.c.due, first.c.id, _pair(gaps, "end")),
        first.c.due <= bindparam("now"),
    )
    return select(gaps.c.number).select_from(gaps).join(first, inside)


def _pair(gaps: Any, side: str) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    # Of two columns, unlike of a column and a value, PostgreSQL must be told whose order counts.
    return gaps.c[f"{side}_due"], gaps.c[f"{side}_id"].collate("C")
