"""Contract of a timeout store: the timeouts of an endpoint."""

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

# --- effects of a second message with a used id -------------------------------------------------


class RepeatKind(StrEnum):
    """Effect of a message whose id was used before."""

    DUPLICATE = "duplicate"
    """Its content is the same, or the content of the first is unknown: nothing changed."""
    CANCELLED = "cancelled"
    """The id was cancelled before the message arrived; the history now has this event."""
    REPLACED = "replaced"
    """It took the place of the pending timeout."""
    SUPERSEDED = "superseded"
    """It was sent before the replacement that is stored, and arrived after it: nothing changed."""
    CONFLICT = "conflict"
    """Its content differs, and it replaces nothing: nothing changed, the message is not stored."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A timeout whose id was used before, and its effect."""

    timeout: Timeout
    kind: RepeatKind


@runtime_checkable
class ExaminesIds(Protocol):
    """A store that can tell which timeouts would be repeats, without storing them."""

    def examine(self, timeouts: Sequence[Timeout], *, transaction: Transaction) -> Sequence[Repeat]:
        """Return the *timeouts* whose id was used before, as visible to *transaction*.

        A replacement that would be applied counts as REPLACED. Nothing is locked: the answer may
        differ when the timeout is stored.
        """
        ...


# --- refusal of a conflict for ``on_conflict="error"``: it must not be silent -----------------


def refuse(repeats: Iterable[Repeat]) -> None:
    """Raise IdInUse for the first conflict of a timeout whose ``on_conflict`` is ``error``."""
    for repeat in repeats:
        timeout = repeat.timeout
        if repeat.kind is RepeatKind.CONFLICT and timeout.on_conflict is OnConflict.ERROR:
            raise IdInUse(timeout.message.id, timeout.id)


# --- outcomes of a dispatch, a cancel or a change ---------------------------------------------


class OutcomeKind(StrEnum):
    """Kinds of ends of a dispatch."""

    DISPATCHED = "dispatched"
    FAILED = "failed"
    """Its whole message is in the error queue."""
    RETRY = "retry"
    """It stays, its attempt is counted, and it is not tried again before ``next_try``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """End of a timeout's dispatch, to be recorded by ``LockedTimeouts.close``.

    *next_try* is an instant of the store's clock; so is *at*, if the dispatcher knew that clock.
    *maybe_sent* is set on a RETRY without a confirm, so that a later cancel promises nothing.
    """

    key: Key
    kind: OutcomeKind
    at: Micros
    next_try: Micros = 0
    reason: str = ""
    maybe_sent: bool = False


class CancelResult(StrEnum):
    """Effect of a cancel or a change, true at the time of the answer."""

    CANCELLED = "cancelled"
    """It will not be delivered."""
    TOO_LATE = "too_late"
    """It was dispatched, or is being dispatched now, and will be delivered. So will a timeout that
    was or is being moved to another place: cancel it there, after it has arrived.

    Without row locks, also: it was stored among timeouts that are being dispatched now.
    """
    MAYBE_SENT = "maybe_sent"
    """It will not be sent again, but a claim on it ended without recording whether it was sent."""
    WILL_BE_CANCELLED = "will_be_cancelled"
    """No such timeout is stored. If its message arrives, it is dropped, with a history event."""
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
    """Timeouts that a dispatcher has locked until it records how each ended.

    A store may add ``now()``, the store's time as the locking query read it. Without ``now()`` the
    batch has only due timeouts, and the dispatcher asks the store for the time of a retry. A store
    may also add ``left``: free keys whose bodies would need too much memory together with the
    locked rows. After the close these keys are free, and are claimed again; within a shared
    transaction the dispatcher locks them again, by an empty token.
    """

    @property
    def timeouts(self) -> Sequence[Timeout]:
        """The locked timeouts: still stored, due, and locked by no other dispatcher.

        With *ahead* they may not be due yet: the dispatcher sends them when they are.
        """
        ...

    def close(self, outcomes: Sequence[Outcome]) -> None:
        """Record *outcomes* and commit (a caller's transaction is committed by the caller).

        DISPATCHED and FAILED remove the row, set the tombstone and write the history; RETRY counts
        the attempt, and moves the timeout to its next try. Raises StorageUnavailable if the commit
        may not have happened: the timeouts are then sent again under the same ids.
        """
        ...


@runtime_checkable
class LeavesKeys(Protocol):
    """Locked timeouts with free keys that were left, see ``LockedTimeouts``."""

    @property
    def left(self) -> Sequence[Key]:
        """The free keys that were not locked."""
        ...


class TimeoutStore(Protocol):
    """Storage of an endpoint's timeouts until they are due. Thread-safe.

    Every method raises StorageUnavailable while the storage is out of reach. Methods with a
    *transaction* take part in it and leave commit and rollback to its owner.
    """

    @property
    def endpoint(self) -> str:
        """The endpoint whose timeouts these are."""
        ...

    def now(self, *, transaction: Transaction | None = None) -> Micros:
        """Return the time with which due times are compared: the database's, if it has a clock."""
        ...

    def ping(self) -> None:
        """Return if the storage answers; the probe during an outage."""
        ...

    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> Sequence[Repeat]:
        """Store all or none of *timeouts*, durably; return the repeats of used ids.

        An id that was ever stored, cancelled or dispatched is not stored again: a redelivered store
        message does not duplicate, revive or un-reschedule a timeout. The race: a redelivery that
        finds no tombstone while the dispatch commits must not insert. Only a replacement changes a
        pending timeout; it competes with a running dispatch as ``reschedule`` does. The kind of a
        Repeat is its effect. Raises IdInUse, with none stored, for a conflict of a timeout whose
        ``on_conflict`` is ``error``.
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

        If more keys are due, claim up to *chunks* chunks of *limit* keys, each with its own claim;
        this saves transactions. A store may claim fewer keys, and need not support several chunks.
        It may claim keys due up to *ahead* microseconds from now: the dispatcher waits until they
        are due, and the time for claim and transport is saved. Of concurrent claims, exactly one
        gets a key. A claim ends by close, release, its owner's death, or expiry. It is committed
        before the call returns (in a caller's transaction: with it). *now* is used only if the
        storage has no clock.
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

        Skip keys that are closed, moved, not due or locked; that is no error. A store whose answer
        has ``now()`` may also lock timeouts due *ahead* microseconds from now; the caller sends
        them when they are due by that clock. Databases with row locks keep them until ``close``.
        Other stores compare *token*, which must still be the current claim. An empty *token* (a
        single-id control message) makes a claim. An order names all keys of its claim: the first
        dispatcher that closes keys of a claim ends the claim, even if a second dispatcher has
        locked more of its keys. These keys may then be claimed again, but the row locks prevent a
        second lock. If the context ends without ``close``, everything is free again.
        """
        ...

    def release(self, token: str, *, maybe_sent: bool = False) -> None:
        """Release a claim whose order was not sent, so that its keys can be claimed at once.

        If it is unknown whether the order was sent, a dispatcher may be working on the claim. Then
        a claim with locked keys stays, and released keys count as maybe sent.
        """
        ...

    def notify_stored(self, due: Micros) -> None:
        """Note that a timeout due at *due* was stored in a caller's transaction that committed.

        A store with a cursor moves the cursor back to *due*; other stores do nothing.
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
        """Return a page of pending timeouts by due and id, after the key *after*."""
        ...

    def count(self, which: TimeoutFilter) -> int:
        """Return how many pending timeouts match."""
        ...

    def cancel(self, timeout_id: str) -> CancelResult:
        """Cancel a timeout; if a dispatch races with it, exactly one of them wins and both know."""
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

        Skip timeouts sent after *sent_until*: a redelivered order to clear must not reach timeouts
        sent after it. The ids *keeping* stay pending whenever they were sent.
        """
        ...

    def reschedule(self, timeout_id: str, due: Micros) -> ChangeResult:
        """Move a timeout to another due time; its id, message and tombstone do not change."""
        ...

    def statistics(self) -> StoreStatistics:
        """Return the figures for ``timeoutmgr status``."""
        ...

    def heartbeat(self, owner: str, state: Mapping[str, str]) -> Micros | None:
        """Record that the process *owner* is alive, with its state; once a minute is enough.

        Return by how much the storage's clock is ahead of the host's clock, if the answer contained
        it; otherwise None. This saves a query.
        """
        ...

    def unregister_process(self, owner: str) -> None:
        """Remove the heartbeat of *owner*, which stopped cleanly; idempotent."""
        ...

    def processes(self) -> Sequence[ProcessRecord]:
        """Return the last heartbeats of the endpoint's processes, the latest first."""
        ...

    def purge(self) -> int:
        """Remove a bounded number of tombstones and history past retention; return how many."""
        ...

    def run_maintenance(self) -> bool:
        """Do a short step of maintenance; return whether more is to do.

        Called once a minute by each process, one thread at a time, and again while there is more.
        """
        ...


@dataclass(frozen=True, slots=True)
class Rerouted:
    """Result of a reroute: keys of timeouts that have a new destination.

    Messages of *maybe_sent* may have been sent to the former destination before. *unparked_at* is
    the new place of timeouts that a pause had parked: these are due.
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

        Pass at most a few hundred keys. Timeouts that are closed, moved to another due time or
        locked by a dispatcher are skipped, and keep their destination. The digest of the message
        stays, so that a redelivery is a repeat.
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
    """A store that measures the lag of its purge."""

    def purge_lag(self) -> Micros:
        """Return how long ago the oldest row should have been removed; 0 if there is none.

        It must be cheap: it is called each second while there are old rows.
        """
        ...


@runtime_checkable
class MeasuresPartitions(Protocol):
    """A store that measures the lag of its maintenance of partitions."""

    def partitions_missing(self) -> int | None:
        """Return how many partitions the last maintenance left to make; None without partitions.

        It makes no query.
        """
        ...


class WakePoller(Protocol):
    """Function that asks the poller of this process for a poll."""

    def __call__(self, due: Micros | None = None, /) -> None:
        """Ask for a poll at *due* of the store's clock; None asks for a poll now."""
        ...


class Wakeups(Protocol):
    """Requests for polls between the processes of an endpoint, sent and received."""

    def notify(self) -> None:
        """Ask all other processes for a poll. Raises StorageUnavailable."""
        ...

    def check(self) -> None:
        """Check the wakeups; called about every second, so it must run no statement."""
        ...

    def close(self) -> None:
        """Stop listening; idempotent, and allowed before the first check."""
        ...


@runtime_checkable
class WakesProcesses(Protocol):
    """A store whose processes can ask each other for a poll; no store needs to."""

    def wakeups(self, wake: WakePoller) -> Wakeups | None:
        """Return wakeups that call *wake* when another process asks; None if impossible."""
        ...


# --- direct storage: delayed messages that bypass the queue of their timeout manager ------------

StoreDirectly: TypeAlias = Callable[
    [Sequence[Message], Transaction | None], Sequence[RepeatKind | None]
]
"""Stores messages that were routed to the manager, bypassing its queue, in the given transaction.

Returns for each message the kind of repeat if its id was used before; None for a new id. Raises
IdInUse.
"""

Examine: TypeAlias = Callable[[Message, Transaction], RepeatKind | None]
"""Returns the kind of repeat of a message, or None; stores nothing. Raises IdInUse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectStorage:
    """Storage that bypasses the queue: in a caller's transaction, or in bulk.

    *database* is the database of the store. *start* prepares a delayed message store in which no
    installer has run. *examine* is None for a store that cannot find used ids.
    """

    database: SharedDatabase | None
    store: StoreDirectly
    examine: Examine | None = None
    start: Callable[[], None] | None = None
