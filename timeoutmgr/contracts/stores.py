"""The store of one endpoint's timeouts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from timeoutmgr.contracts.outcomes import CancelResult, ChangeResult, Outcome
from timeoutmgr.contracts.repeats import Repeat
from timeoutmgr.contracts.reports import Count, ProcessRecord, StoreStatistics
from timeoutmgr.contracts.timeouts import Chunk, Key, Timeout, TimeoutFilter, TimeoutState
from timeoutmgr.contracts.transactions import Transaction
from timeoutmgr.instants import Micros


class Taken(Protocol):
    """Timeouts in the hands of one dispatcher, until it says how each ended.

    It may have more: ``now()``, the time of the store's clock as it is known from the taking. Of
    one that has not the store is asked for it, where something is to be tried again, and it holds
    nothing that is not due. And ``left``, those of the asked keys that can be had and whose bodies
    would be too much in hand together with the others'. Once those are closed they are nobody's,
    and claimed again; within one transaction they are asked for anew, by an empty token.
    """

    @property
    def timeouts(self) -> Sequence[Timeout]:
        """Those of the asked keys that are still there, due, and in nobody else's hands.

        Due as soon as was asked: who asks for what is due in a moment sends it then.
        """
        ...

    def close(self, outcomes: Sequence[Outcome]) -> None:
        """Record *outcomes* and commit (a caller's transaction is the caller's to commit).

        DISPATCHED and FAILED remove the row, set the tombstone and write the history; RETRY
        counts the attempt, and moves the timeout to its next try. Raises StorageUnavailable
        where the commit may not have happened: the timeouts then go out again under the same ids.
        """
        ...


class TimeoutStore(Protocol):
    """Where the timeouts of one endpoint rest until they are due. Safe for many threads.

    Every method raises StorageUnavailable while the storage is away. Methods with a
    *transaction* take part in it and leave commit and rollback to its owner.
    """

    @property
    def endpoint(self) -> str:
        """The endpoint whose timeouts these are."""
        ...

    def now(self, *, transaction: Transaction | None = None) -> Micros:
        """Return the time that due times are compared with: the database's, if it has a clock."""
        ...

    def ping(self) -> None:
        """Return if the storage answers; the probe during an outage."""
        ...

    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> Sequence[Repeat]:
        """Store all or none of *timeouts*, durably; return those whose id was used before.

        An id that was ever stored, cancelled or dispatched is not stored again: a redelivered
        store message neither doubles, resurrects nor un-reschedules a timeout. The race: a
        redelivery that finds no tombstone while the dispatch commits must not insert. Only a
        replacement changes a timeout that is pending; decided against a running dispatch as
        ``reschedule`` is. What became of each Repeat says its kind. Raises IdInUse, with none
        stored, for a conflict of a timeout whose ``on_conflict`` is ``error``.
        """
        ...

    def claim(
        self,
        now: Micros,
        limit: int,
        owner: str,
        *,
        chunks: int = 1,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> Chunk:
        """Hand out at most *limit* due keys that nobody holds, oldest first, to *owner*.

        Up to *chunks* times that, each *limit* under a claim of its own, where more is due: it
        saves transactions. A store may hand out fewer, and need not know more than one.
        It may hand out what is due up to *ahead* microseconds from now: whoever dispatches it
        waits until it is due, and has saved the time of the claim and of the way.
        Of many that claim at once, each key goes to one. A claim ends by being closed or
        released, by its owner's death, or by lapsing. It is committed before it returns (in a
        caller's transaction: with it). *now* counts only where the storage has no clock.
        """
        ...

    def take_many(
        self,
        token: str,
        keys: Sequence[Key],
        *,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> AbstractContextManager[Taken]:
        """Take the timeouts of *keys* in hand for dispatch.

        Keys that are gone, moved, not due or in other hands are left out: a benign outcome. A
        store whose ``Taken`` tells ``now()`` may count as due what is so *ahead* microseconds
        from now; the caller sends it when that clock says so.
        Databases with row locks hold them until ``close``; others fence by *token*, which must
        still be the live claim. An empty *token* (a single-id control message) claims on the
        spot. Leaving the context without ``close`` gives everything back.
        """
        ...

    def release(self, token: str, *, maybe_handed_on: bool = False) -> None:
        """Give a claim back that was not handed on, so that it can be claimed at once.

        Where it is not known whether it was, a dispatcher may be at work under it: then the claim
        stays where one is, and what is freed counts as maybe sent.
        """
        ...

    def expect(self, due: Micros) -> None:
        """Hear that a timeout of *due* was stored in a caller's transaction, and is committed.

        A store that remembers how far it has looked looks there again; others do nothing.
        """
        ...

    def next_due(self) -> Micros | None:
        """Return the earliest due instant stored, or None."""
        ...

    def find(self, timeout_id: str) -> tuple[TimeoutState, Timeout | None] | None:
        """Return the state of *timeout_id* (its row while pending), or None if never seen."""
        ...

    def key_of(self, timeout_id: str) -> Key | None:
        """Return the key of a pending timeout; for control messages that carry the id alone."""
        ...

    def list(
        self, which: TimeoutFilter, *, limit: int = 100, after: Key | None = None
    ) -> list[Timeout]:
        """Return a page of pending timeouts by due and id, those behind *after*."""
        ...

    def count(self, which: TimeoutFilter) -> int:
        """Return how many pending timeouts match."""
        ...

    def cancel(self, timeout_id: str) -> CancelResult:
        """Cancel one; of a cancel and a dispatch at once, exactly one wins and both know."""
        ...

    def cancel_saga(
        self,
        saga_id: str,
        *,
        sent_until: Micros | None = None,
        keeping: Collection[str] = (),
        transaction: Transaction | None = None,
    ) -> int:
        """Cancel all of a saga that are not in other hands; return how many.

        Of those sent after *sent_until* none: a redelivered order to clear must not reach what
        was sent later than it. The ids *keeping* stay pending whenever they were sent.
        """
        ...

    def reschedule(self, timeout_id: str, due: Micros) -> ChangeResult:
        """Move one to another due time; its id, message and tombstone stay its own."""
        ...

    def statistics(self) -> StoreStatistics:
        """Return what ``timeoutmgr status`` shows."""
        ...

    def heartbeat(self, owner: str, state: Mapping[str, str]) -> Micros | None:
        """Say that the process *owner* lives, and how it is; once a minute is enough.

        Return by how much the storage's clock is ahead of the host's if the answer told, else
        None: it spares the storage the question.
        """
        ...

    def farewell(self, owner: str) -> None:
        """Take the heartbeat of *owner* away: it stopped cleanly. Twice is fine."""
        ...

    def processes(self) -> Sequence[ProcessRecord]:
        """Return what the endpoint's processes said last, the latest first."""
        ...

    def purge(self) -> int:
        """Remove a bounded number of tombstones and history past retention; return how many."""
        ...

    def tend(self) -> bool:
        """Do a short step of what keeps the storage fast; return whether there is more to do.

        Called once a minute by each process, one thread at a time, and again while there is more.
        """
        ...


@runtime_checkable
class ChoosesClock(Protocol):
    """A store in a database that may compare due times with another clock; no store needs to."""

    @property
    def goes_by_host(self) -> bool:
        """Whether due times are compared with the host's clock, not with the database's."""
        ...


@runtime_checkable
class CountsInBounds(Protocol):
    """A store that counts as far as it costs little."""

    def count_in_bounds(self, which: TimeoutFilter) -> Count:
        """Return how many pending timeouts match; exact up to COUNTED, where few rows are read."""
        ...


@runtime_checkable
class MeasuresPurge(Protocol):
    """A store that tells how far its removal of old rows is behind."""

    def purge_lag(self) -> Micros:
        """Return for how long the oldest row past retention should have been removed; 0: none.

        It must be cheap: it is asked each second while there are old rows.
        """
        ...
