"""Timeouts, clocks and outcomes as the tests of the stores need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection

from timeoutmgr.contracts import (
    Chunk,
    Key,
    Outcome,
    OutcomeKind,
    Timeout,
    TimeoutStore,
)
from timeoutmgr.database import Database
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message

NOW: Micros = 1_900_000_000_000_000
SECOND = 1_000_000


class SetClock:
    """A clock that stands where it is put."""

    def __init__(self, now: Micros = NOW) -> None:
        self.at = now

    def now(self) -> Micros:
        return self.at

    def monotonic(self) -> float:
        return self.at / SECOND


def timeout(
    name: str,
    due: Micros = NOW,
    *,
    saga: str | None = None,
    destination: str = "billing",
    body: bytes = b"body",
) -> Timeout:
    return Timeout(
        id=name,
        due=due,
        destination=destination,
        saga_id=saga,
        created=due - SECOND,
        message=Message(id=f"m {name}"[:255], headers={"name": name}, body=body),
    )


def ids(chunk: Chunk) -> list[str]:
    return [key.id for key in chunk.keys]


def outcomes(
    keys: Sequence[Key], kind: OutcomeKind = OutcomeKind.DISPATCHED, at: Micros = NOW
) -> list[Outcome]:
    return [Outcome(key=key, kind=kind, at=at) for key in keys]


def dispatch(store: TimeoutStore, chunk: Chunk, at: Micros = NOW) -> list[str]:
    """Take all of *chunk*, close it as dispatched, and return the ids that were there."""
    with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
        locked.close(outcomes([one.key for one in locked.timeouts], at=at))
        return [one.id for one in locked.timeouts]


@contextmanager
def rolled_back(database: Database) -> Iterator[Connection]:
    """Open a transaction that comes to nothing."""
    try:
        with database.begin() as transaction:
            yield transaction
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
