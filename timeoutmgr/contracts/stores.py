"""The store of one endpoint's timeouts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

from timeoutmgr.contracts.reports import ProcessRecord, StoreStatistics
from timeoutmgr.contracts.timeouts import (
    Chunk,
    Key,
    OnConflict,
    Timeout,
    TimeoutFilter,
    TimeoutState,
)
from timeoutmgr.contracts.transactions import SharedDatabase, Transaction
from timeoutmgr.errors import IdInUse
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message

# --- A second message under an id that was used before: the outcome ---------------------------


class RepeatKind(StrEnum):
    """Effect of a message whose id was used before."""

    DUPLICATE = "duplicate"
    """The same content again, or the content of the first is not known: nothing changed."""
    CANCELLED = "cancelled"
    """The id was cancelled before the message arrived; the history says so from now on."""
    REPLACED = "replaced"
    """It took the place of the pending timeout."""
    SUPERSEDED = "superseded"
    """Sent before the replacement that counts, and came behind it: nothing changed."""
    CONFLICT = "conflict"
    """Other content, and nothing to be replaced: nothing changed, the message is not stored."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A timeout whose id was used before, and its effect."""

    timeout: Timeout
    kind: RepeatKind


@runtime_checkable
class ExaminesIds(Protocol):
    """A store that foretells the repeats among timeouts, and stores nothing."""

    def examine(self, timeouts: Sequence[Timeout], *, transaction: Transaction) -> Sequence[Repeat]:
        """Return the *timeouts* whose id was used before, as *transaction* sees it.

        A replacement that would be applied counts as REPLACED. Nothing is locked: the answer may
        differ when the timeout is stored.
        """
        ...


# --- refusal of a conflict whose message asks for an error: it must not be dropped in silence ---


def refuse(repeats: Iterable[Repeat]) -> None:
    """Raise IdInUse for the first conflict of a timeout whose ``on_conflict`` is ``error``."""
    for repeat in repeats:
        timeout = repeat.timeout
        if repeat.kind is RepeatKind.CONFLICT and timeout.on_conflict is OnConflict.ERROR:
            raise IdInUse(timeout.message.id, timeout.id)


# --- outcomes of a dispatch, a cancel or a change ---------------------------------------------


class OutcomeKind(StrEnum):
    """How the dispatch of one timeout ended."""

    DISPATCHED = "dispatched"
    FAILED = "failed"
    """Its whole message is in the error queue."""
    RETRY = "retry"
    """It stays, with one more attempt, and is not tried before ``next_try``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the dispatch of one timeout ended, to be recorded by ``LockedTimeouts.close``.

    *next_try* is an instant of the store's clock; *at* is too, where the dispatcher knew it.
    *maybe_sent* goes with RETRY: no confirm came, so that a later cancel must not promise.
    """

    key: Key
    kind: OutcomeKind
    at: Micros
    next_try: Micros = 0
    reason: str = ""
    maybe_sent: bool = False


class CancelResult(StrEnum):
    """Effect of a cancel or a change; every answer is true when it is given."""

    CANCELLED = "cancelled"
    """It will not be delivered."""
    TOO_LATE = "too_late"
    """It was dispatched, or is being dispatched now; it will be delivered. So it will when it was
    moved to another place, or is on its way there: cancel it there, once it has arrived.

    Without row locks, also: it was stored amid timeouts that are being dispatched now.
    """
    MAYBE_SENT = "maybe_sent"
    """It will not be sent again, but a claim on it ended without saying whether it was sent."""
    WILL_BE_CANCELLED = "will_be_cancelled"
    """No such timeout is stored. If its message arrives, it is dropped and the history says so."""
    UNKNOWN = "unknown"
    """No such timeout is stored, and the store cannot remember a cancel."""


class ChangeResult(StrEnum):
    """Effect of a reschedule or send-now."""

    CHANGED = "changed"
    TOO_LATE = "too_late"
    MAYBE_SENT = "maybe_sent"
    """It is rescheduled, but an earlier claim may have sent it already."""
    UNKNOWN = "unknown"


class LockedTimeouts(Protocol):
    """Timeouts in the hands of one dispatcher, until it says how each ended.

    It may have more: ``now()``, the time of the store's clock as the lock's query read it. If a
    batch has no ``now()``, the dispatcher asks the store when it schedules a retry, and the batch
    has due timeouts only. And ``left``: free keys whose bodies would be too large in memory
    together with the locked rows. After the close the keys are free, and claimed again; within a
    shared transaction the dispatcher locks them anew, by an empty token.
    """

    @property
    def timeouts(self) -> Sequence[Timeout]:
        """The locked timeouts: still stored, due, and locked by no other dispatcher.

        With *ahead* they may be due in a moment: the dispatcher sends them then.
        """
        ...

    def close(self, outcomes: Sequence[Outcome]) -> None:
        """Record *outcomes* and commit (a caller's transaction is the caller's to commit).

        DISPATCHED and FAILED remove the row, set the tombstone and write the history; RETRY
        counts the attempt, and moves the timeout to its next try. Raises StorageUnavailable
        where the commit may not have happened: the timeouts then go out again under the same ids.
        """
        ...


@runtime_checkable
class LeavesKeys(Protocol):
    """Locked timeouts that left free keys, see ``LockedTimeouts``."""

    @property
    def left(self) -> Sequence[Key]:
        """The free keys that were not locked."""
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
        """Store all or none of *timeouts*, durably; return the repeats of used ids.

        An id that was ever stored, cancelled or dispatched is not stored again: a redelivered
        store message neither doubles, resurrects nor un-reschedules a timeout. The race: a
        redelivery that finds no tombstone while the dispatch commits must not insert. Only a
        replacement changes a timeout that is pending; decided against a running dispatch as
        ``reschedule`` is. The kind of a Repeat is its effect. Raises IdInUse, with none stored,
        for a conflict of a timeout whose ``on_conflict`` is ``error``.
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
        """Claim at most *limit* free due keys, oldest first, for *owner*.

        If more is due, up to *chunks* chunks of *limit* keys, each under a claim of its own: this
        saves transactions. A store may claim fewer keys, and need not support several chunks.
        It may claim keys due up to *ahead* microseconds from now: the dispatcher waits until they
        are due, and has saved the time of the claim and of the way.
        Of concurrent claims, exactly one gets a key. A claim ends by close, release, its owner's
        death, or expiry. It is committed before the call returns (in a caller's transaction: with
        it). *now* counts only if the storage has no clock.
        """
        ...

    def lock_for_dispatch(
        self,
        token: str,
        keys: Sequence[Key],
        *,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> AbstractContextManager[LockedTimeouts]:
        """Lock the timeouts of *keys* for dispatch.

        Leave out keys that are closed, moved, not due or locked: a benign outcome. A store whose
        answer has ``now()`` may also lock timeouts due *ahead* microseconds from now; the caller
        sends them when they are due by that clock.
        Databases with row locks keep them until ``close``; other stores compare *token*, which
        must still be the live claim. An empty *token* (a single-id control message) claims at
        once. An order names all keys of its claim: the first dispatcher that closes keys of a
        claim ends it, even if a second dispatcher has locked more of its keys. These may then be
        claimed once more, and the row locks keep them from a second lock. Leaving the context
        without ``close`` frees everything.
        """
        ...

    def release(self, token: str, *, maybe_sent: bool = False) -> None:
        """Release a claim whose order was not sent, so that its keys can be claimed at once.

        If the fate of the order is unknown, a dispatcher may be at work under the claim: then a
        claim with locked keys stays, and freed keys count as maybe sent.
        """
        ...

    def notify_stored(self, due: Micros) -> None:
        """Hear that a timeout of *due* was stored in a caller's transaction, and is committed.

        A store with a cursor moves it back to *due*; other stores do nothing.
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
        """Return a page of pending timeouts by due and id, from behind *after*."""
        ...

    def count(self, which: TimeoutFilter) -> int:
        """Return how many pending timeouts match."""
        ...

    def cancel(self, timeout_id: str) -> CancelResult:
        """Cancel a timeout; a cancel and a dispatch race, exactly one wins and both know."""
        ...

    def cancel_saga(
        self,
        saga_id: str,
        *,
        sent_until: Micros | None = None,
        keeping: Collection[str] = (),
        transaction: Transaction | None = None,
    ) -> Sequence[str]:
        """Cancel all timeouts of a saga that no dispatcher has locked; return their ids.

        Spare timeouts sent after *sent_until*: a redelivered order to clear must not reach
        timeouts sent later than itself. The ids *keeping* stay pending at any time of sending.
        """
        ...

    def reschedule(self, timeout_id: str, due: Micros) -> ChangeResult:
        """Move a timeout to another due time; its id, message and tombstone stay its own."""
        ...

    def statistics(self) -> StoreStatistics:
        """Return the figures of ``timeoutmgr status``."""
        ...

    def heartbeat(self, owner: str, state: Mapping[str, str]) -> Micros | None:
        """Say that the process *owner* lives, and how it is; once a minute is enough.

        Return by how much the storage's clock is ahead of the host's if the answer told, else
        None: it spares the storage the question.
        """
        ...

    def unregister_process(self, owner: str) -> None:
        """Take the heartbeat of *owner* away: it stopped cleanly. Twice is fine."""
        ...

    def processes(self) -> Sequence[ProcessRecord]:
        """Return the last heartbeats of the endpoint's processes, the latest first."""
        ...

    def purge(self) -> int:
        """Remove a bounded number of tombstones and history past retention; return how many."""
        ...

    def run_maintenance(self) -> bool:
        """Do a short step of upkeep that keeps the storage fast; return whether more is to do.

        Called once a minute by each process, one thread at a time, and again while there is more.
        """
        ...


@dataclass(frozen=True, slots=True)
class Rerouted:
    """Keys of timeouts that have another destination now.

    Messages of *maybe_sent* may have been sent to the former destination before. *unparked_at* is
    the new place of timeouts that a pause had parked: they are due.
    """

    keys: Sequence[Key]
    maybe_sent: Sequence[Key] = ()
    unparked_at: Micros | None = None


@runtime_checkable
class ReroutesTimeouts(Protocol):
    """A store that changes the destination of pending timeouts; no store needs to."""

    def reroute(
        self, keys: Sequence[Key], destination: str, *, channel: str | None = None
    ) -> Rerouted:
        """Send the timeouts of *keys* to *destination* when they are due, in one transaction.

        At most a few hundred keys. Leave out timeouts that are closed, moved to another due time
        or locked by a dispatcher: these go where they went. The digest of the message stays, so
        that a redelivery is a repeat.
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
class MeasuresPurge(Protocol):
    """A store that tells how far its removal of old rows is behind."""

    def purge_lag(self) -> Micros:
        """Return for how long the oldest row past retention should have been removed; 0: none.

        It must be cheap: it is asked each second while there are old rows.
        """
        ...


@runtime_checkable
class MeasuresPartitions(Protocol):
    """A store that tells how far its maintenance of partitions is behind."""

    def partitions_missing(self) -> int | None:
        """Return how many partitions the last maintenance left to be made; None if it makes none.

        It reads nothing.
        """
        ...


class WakePoller(Protocol):
    """A call that asks this process' poller for a poll."""

    def __call__(self, due: Micros | None = None, /) -> None:
        """Ask for a poll at *due* of the store's clock; None asks for a poll now."""
        ...


class Wakeups(Protocol):
    """Asks the pollers of an endpoint's other processes for a poll, and is asked by them."""

    def notify(self) -> None:
        """Ask all other processes for a poll. Raises StorageUnavailable."""
        ...

    def check(self) -> None:
        """Look after itself; called about every second, so that it must cost no statement."""
        ...

    def close(self) -> None:
        """Hear no more; twice, and before the first check, is fine."""
        ...


@runtime_checkable
class WakesProcesses(Protocol):
    """A store whose processes can ask each other for a poll; no store needs to."""

    def wakeups(self, wake: WakePoller) -> Wakeups | None:
        """Return wakeups that call *wake* when another process asks; None if there is no way."""
        ...


# --- direct storage: delayed messages stored past the queue of their timeout manager ----------

StoreDirectly: TypeAlias = Callable[
    [Sequence[Message], Transaction | None], Sequence[RepeatKind | None]
]
"""Stores messages that were routed to the manager past its queue, in the given transaction.

Returns for each message the kind of repeat if its id was used before; None for a new id. Raises
IdInUse.
"""

Examine: TypeAlias = Callable[[Message, Transaction], RepeatKind | None]
"""Returns the kind of repeat of a message, or None; stores nothing. Raises IdInUse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectStorage:
    """Storing past the queue: in a caller's transaction, or in bulk.

    *database* is the database of the store. *start* readies a delayed message store in which no
    installer has run; *examine* is None for a store that cannot find used ids.
    """

    database: SharedDatabase | None
    store: StoreDirectly
    examine: Examine | None = None
    start: Callable[[], None] | None = None
