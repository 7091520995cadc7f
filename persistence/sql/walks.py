"""Walks through the matches of a filter: rows along an index, each tested by conditions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    and_,
    func,
    literal,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.mysql import BINARY

from timeoutmgr.contracts import Key, TimeoutFilter
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros

from .context import StoreContext
from .labels import has_labels, of_label
from .rows import Col, after, at_each, up_to

Conditions = list[ColumnElement[bool]]


@dataclass(frozen=True, slots=True)
class Walk:
    """Part of the matches: rows that an index finds by the conditions *along*, tested by *tests*.

    The keys of the rows are columns of *at*, whose primary key has their order. *most* is an upper
    bound of the rows along it. *by_key* is false for a few rows that another index has: a plan in
    the order of the primary key would read all rows between them.
    """

    context: StoreContext
    at: Table
    along: Conditions
    tests: Conditions = field(default_factory=list)
    most: int | None = None
    by_key: bool = True

    @property
    def due(self) -> ColumnElement[Micros]:
        """The due time; written as a sum if no plan may use the primary key for it."""
        due: ColumnElement[Micros] = self.at.c.due
        return due if self.by_key else due + literal_column("0")

    @property
    def order(self) -> tuple[ColumnElement[Micros], Col]:
        """The columns that order the rows by key."""
        return self.due, self.at.c.id

    def tested(self, test: ColumnElement[bool]) -> "Walk":
        """Return the walk with another test of its rows."""
        return replace(self, tests=[*self.tests, test])

    def behind(self, key: Key) -> "Walk":
        """Return the walk of the rows after *key*."""
        return replace(self, along=[*self.along, after(self.context, *self.order, key)])

    def rows(self, *columns: Any) -> Select[Any]:
        """Return the statement that reads the rows along the index in their order, untested.

        Its limit makes a database follow the index, whatever statistics say of the conditions.
        """
        return select(*columns).where(*self.along).order_by(*self.order).limit(self.most)

    def until(self, key: Key) -> "Walk":
        """Return the walk of the rows up to *key*."""
        return replace(self, along=[*self.along, up_to(self.context, *self.order, key)])

    @property
    def matching(self) -> Conditions:
        """All conditions."""
        return [*self.along, *self.tests]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChoice:
    """The indexes that lead to the matches of a filter.

    *by_saga*: use the index on sagas. *waiting_apart*: a separate walk has the timeouts that wait
    for a retry and were due before the filter's end; otherwise the walk has no end. *none_waits*:
    there are no such timeouts, and no such walk. *keys*: the pending keys whose ids begin with the
    filter's prefix, if they are few.
    """

    by_saga: bool = True
    waiting_apart: bool = True
    none_waits: bool = False
    keys: Sequence[Key] | None = None


class Walks:
    """Builds the walks of one endpoint."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._timeouts = context.tables.timeouts

    def of(
        self, which: TimeoutFilter, choice: IndexChoice, behind: Key | None = None
    ) -> list[Walk]:
        """Return walks that together have each match of *which* after the key *behind* once.

        All keys of a second walk come after the keys of the first. A timeout that waits for a retry
        matches by its due time, but its place is elsewhere.
        """
        walk = self._whole(which, choice)
        if behind is not None:
            walk = walk.behind(behind)
        first = func.coalesce(self._timeouts.c.original_due, self._timeouts.c.due)
        if which.due_from is not None:
            walk.along.append(walk.due >= which.due_from)
            walk.tests.append(first >= which.due_from)
        if which.tried_from is not None:
            walk.along.append(walk.due >= which.tried_from)
        if which.tried_before is not None:
            walk.along.append(walk.due < which.tried_before)
        if which.due_before is None:
            return [walk]
        if not choice.waiting_apart:
            walk.tests.append(first < which.due_before)
            return [walk]
        in_place = replace(walk, along=[*walk.along, walk.due < which.due_before])
        if choice.none_waits:
            return [in_place]
        waiting = replace(walk, by_key=bool(which.labels))
        along = [*self._waiting(which.due_before), waiting.due >= which.due_before]
        return [in_place, replace(waiting, along=[*walk.along, *along])]

    def waiting_before(self, due: Micros) -> Conditions:
        """Return the conditions of the timeouts that wait for a retry and were due before *due*."""
        return [self._timeouts.c.endpoint == self._context.endpoint, *self._waiting(due)]

    def of_saga(self, saga_id: str) -> Conditions:
        """Return the conditions of the timeouts of a saga."""
        timeouts = self._timeouts
        return [timeouts.c.endpoint == self._context.endpoint, timeouts.c.saga_id == saga_id]

    def _waiting(self, due: Micros) -> Conditions:
        original = self._timeouts.c.original_due
        return [original.is_not(None), original < due]

    def _whole(self, which: TimeoutFilter, choice: IndexChoice) -> Walk:
        """Return the walk of *which*, without its due times."""
        timeouts, context = self._timeouts, self._context
        along = [timeouts.c.endpoint == context.endpoint]
        tests: Conditions = []
        if which.id is not None:
            along += self._at(which.id)
        if which.saga_id is not None:
            (along if choice.by_saga else tests).append(timeouts.c.saga_id == which.saga_id)
        if which.labels:
            along += of_label(context, which.labels[0])
            tests += has_labels(context, which.labels[1:])
        if choice.keys is not None:
            along.append(at_each(context, choice.keys))
        elif which.id_prefix is not None:
            tests += begins(timeouts.c.id, which.id_prefix)
        if which.destination is not None:
            tests.append(timeouts.c.destination == which.destination)
        if which.message_id is not None:
            tests.append(timeouts.c.message_id == which.message_id)
        if which.message_type is not None:
            tests.append(self._is_of_type(which.message_type))
        at = context.tables.labels if which.labels else timeouts
        by_saga = which.saga_id is not None and choice.by_saga
        return Walk(context, at, along, tests, by_key=bool(which.labels) or not by_saga)

    def _at(self, timeout_id: str) -> Conditions:
        """Return the conditions of one id: its key says when it is due, since no index has ids."""
        keys, endpoint = self._context.tables.keys, self._context.endpoint
        due = select(keys.c.due).where(keys.c.endpoint == endpoint, keys.c.id == timeout_id)
        timeouts = self._timeouts
        return [timeouts.c.due == due.scalar_subquery(), timeouts.c.id == timeout_id]

    def _is_of_type(self, full_name: str) -> ColumnElement[bool]:
        """Return the condition that the header of types begins with *full_name*.

        The headers are JSON text without blanks. A brace or a comma precedes a name's quote; inside
        a value or another name, a backslash precedes a quote. The type is followed by the end of
        the text, the assembly, or another type.
        """
        begun = f'"{headers.ENCLOSED_MESSAGE_TYPES}":{json.dumps(full_name)}'.removesuffix('"')
        # First the name alone: most rows fail there.
        whole = (start + begun + end for start in "{," for end in '",;')
        return and_(self._has(begun), or_(*map(self._has, whole)))

    def _has(self, part: str) -> ColumnElement[bool]:
        """Return the condition that the headers contain *part*, in the same case."""
        text, dialect = self._timeouts.c.headers, self._context.database.dialect.name
        if dialect == "postgresql":
            return func.strpos(text, part) > 0
        if dialect == "mssql":
            return func.charindex(part, text.collate("Latin1_General_BIN2")) > 0
        if dialect in {"mysql", "mariadb"}:
            return func.instr(text, literal(part).cast(BINARY)) > 0
        return func.instr(text, part) > 0


def begins(column: ColumnElement[str], prefix: str) -> Conditions:
    """Return conditions, which an index serves, that a key text begins with *prefix*."""
    # Keys compare bytewise everywhere, and no character has greater bytes than this last one.
    return [column >= prefix, column < prefix + "\U0010ffff"]
