"""What the core asks of its parts: stores, transports, clocks.

All ports are synchronous: a step over them is a plain function, so that production, unit tests,
the crash model and the simulator run one and the same code. An instant is UTC microseconds
(:data:`timeoutmgr.instants.Micros`), a wait is seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from sqlalchemy import Connection

from timeoutmgr.instants import Micros
from timeoutmgr.message import Message, Outgoing, Received

if TYPE_CHECKING:
    from timeoutmgr.database import Database

Transaction: TypeAlias = Connection
"""An open database transaction that a store and a SQL queue can both take part in."""


class Clock(Protocol):
    """Where time comes from; the only place."""

    def now(self) -> Micros:
        """Return the wall clock's UTC microseconds; it may be stepped either way."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, for waiting."""
        ...


class TransactionMode(StrEnum):
    """What is undone together when handling a message fails."""

    NONE = "none"
    """Acknowledged on receipt: a crash loses the message."""
    RECEIVE_ONLY = "receive_only"
    """The message comes back; what was sent meanwhile stays sent."""
    SENDS_ATOMIC_WITH_RECEIVE = "sends_atomic_with_receive"
    """Receiving and sending are one transaction."""
    TRANSACTION_SCOPE = "transaction_scope"
    """Receiving, sending and the store are one transaction of one database."""


# --- stores -----------------------------------------------------------------------------------


class Key(NamedTuple):
    """Where a timeout stands in its endpoint's order of due times."""

    due: Micros
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """A delayed message at rest.

    *id* is derived from endpoint and message id, so that storing twice is storing once.
    *created* is when the sender sent it; *attempts* counts failed dispatches.
    """

    id: str
    due: Micros
    destination: str
    message: Message
    saga_id: str | None = None
    created: Micros = 0
    attempts: int = 0

    @property
    def key(self) -> Key:
        """Where it stands in the order of due times."""
        return Key(self.due, self.id)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Keys that one claim handed out, oldest first, and when to look again.

    *token* names the claim (empty when *keys* is). *next_due* is the instant of the earliest
    timeout that was not handed out: in the past when the limit cut the chunk, None when nothing
    else is stored. Where all that is due is in other hands it is the instant to look again.
    """

    token: str
    keys: tuple[Key, ...]
    next_due: Micros | None


class OutcomeKind(StrEnum):
    """How the dispatch of one timeout ended."""

    DISPATCHED = "dispatched"
    FAILED = "failed"
    """Its whole message is in the error queue."""
    RETRY = "retry"
    """It stays, with one more attempt, and is not tried before ``next_try``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the dispatch of one timeout ended, to be recorded by ``Taken.close``.

    *maybe_sent* goes with RETRY: no confirm came, so that a later cancel must not promise.
    """

    key: Key
    kind: OutcomeKind
    at: Micros
    next_try: Micros = 0
    reason: str = ""
    maybe_sent: bool = False


class CancelResult(StrEnum):
    """What a cancel or a change could still do; every answer is true when it is given."""

    CANCELLED = "cancelled"
    """It will not be delivered."""
    TOO_LATE = "too_late"
    """It was dispatched, or is being dispatched now."""
    MAYBE_SENT = "maybe_sent"
    """It will not be sent again, but a claim on it ended without saying whether it was sent."""
    UNKNOWN = "unknown"
    """No such timeout is stored. Should it still be on its way, it is dropped on arrival."""


class ChangeResult(StrEnum):
    """What a reschedule or send-now could still do."""

    CHANGED = "changed"
    TOO_LATE = "too_late"
    MAYBE_SENT = "maybe_sent"
    """It is rescheduled, but an earlier claim may have sent it already."""
    UNKNOWN = "unknown"


class TimeoutState(StrEnum):
    """What became of a timeout id; all but ``pending`` are tombstones."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutFilter:
    """Which timeouts to list or count; due is a half-open range, None means any."""

    id: str | None = None
    saga_id: str | None = None
    destination: str | None = None
    due_from: Micros | None = None
    due_before: Micros | None = None


class Taken(Protocol):
    """Timeouts in the hands of one dispatcher, until it says how each ended."""

    @property
    def timeouts(self) -> Sequence[Timeout]:
        """Those of the asked keys that are still there, due, and in nobody else's hands."""
        ...

    def close(self, outcomes: Sequence[Outcome]) -> None:
        """Record *outcomes* and commit (a caller's transaction is the caller's to commit).

        DISPATCHED and FAILED remove the row, set the tombstone and write the history; RETRY
        counts the attempt. Raises StorageUnavailable where the commit may not have happened:
        the timeouts then go out again under the same ids.
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

    def now(self) -> Micros:
        """Return the time that due times are compared with: the database's, if it has a clock."""
        ...

    def ping(self) -> None:
        """Return if the storage answers; the probe during an outage."""
        ...

    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> None:
        """Store all or none of *timeouts*, durably.

        An id that was ever stored, cancelled or dispatched is skipped: a redelivered store
        message neither doubles, resurrects nor un-reschedules a timeout. The race: a redelivery
        that finds no tombstone while the dispatch commits must not insert.
        """
        ...

    def claim(
        self, now: Micros, limit: int, owner: str, *, transaction: Transaction | None = None
    ) -> Chunk:
        """Hand out at most *limit* due keys that nobody holds, oldest first, to *owner*.

        Of many that claim at once, each key goes to one. A claim ends by being closed or
        released, by its owner's death, or by lapsing. It is committed before it returns (in a
        caller's transaction: with it). *now* counts only where the storage has no clock.
        """
        ...

    def take_many(
        self, token: str, keys: Sequence[Key], *, transaction: Transaction | None = None
    ) -> AbstractContextManager[Taken]:
        """Take the timeouts of *keys* in hand for dispatch.

        Keys that are gone, moved, not due or in other hands are left out: a benign outcome.
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
        transaction: Transaction | None = None,
    ) -> int:
        """Cancel all of a saga that are not in other hands; return how many.

        Of those sent after *sent_until* none: a redelivered order to clear must not reach what
        was sent later than it.
        """
        ...

    def reschedule(self, timeout_id: str, due: Micros) -> ChangeResult:
        """Move one to another due time; its id, message and tombstone stay its own."""
        ...

    def statistics(self) -> StoreStatistics:
        """Return what ``timeoutmgr status`` shows."""
        ...

    def heartbeat(self, owner: str, state: Mapping[str, str]) -> None:
        """Say that the process *owner* lives, and how it is; once a minute is enough."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """A store at one look; lateness in microseconds over the most recent dispatches."""

    pending: int
    due: int
    oldest_due: Micros | None
    claimed: int
    outcomes: Mapping[str, int]
    lateness_p50: int | None
    lateness_p99: int | None
    lateness_max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """A process at its last heartbeat; *state* is whatever its features reported."""

    owner: str
    endpoint: str
    host: str
    pid: int
    started: Micros
    heartbeat: Micros
    state: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCapabilities:
    """What a persistence can keep; the rows of the capability table."""

    name: str
    durable: bool
    row_locks: bool
    """A dispatcher holds a lock over the publish. Without, a repeat needs a pause > the lease."""
    note: str = ""


class Persistence(Protocol):
    """A place for timeouts, chosen in config; makes one store per endpoint."""

    @property
    def capabilities(self) -> StoreCapabilities:
        """What it can keep."""
        ...

    @property
    def database(self) -> Database | None:
        """The SQL database it lives in, if any: what a SQL queue must share for one transaction."""
        ...

    def install(self) -> None:
        """Create or upgrade what is needed; twice and concurrently is fine."""
        ...

    def ddl(self) -> str:
        """Return the statements that ``install`` would run on an empty database."""
        ...

    def check(self) -> None:
        """Raise SchemaMissing, with the command to run, where ``install`` is needed."""
        ...

    def timeouts(
        self, endpoint: str, clock: Clock, *, atomic_dispatch: bool = False
    ) -> TimeoutStore:
        """Return the timeout store of *endpoint*.

        *atomic_dispatch* says that timeouts are sent in the very transaction that closes them:
        what was not closed was then not sent, and nothing is ever "maybe sent".
        """
        ...

    def close(self) -> None:
        """Let go of connections; closing twice is fine."""
        ...


# --- transports -------------------------------------------------------------------------------


class SendResult(Enum):
    """What the broker said of one message."""

    CONFIRMED = "confirmed"
    """It has taken responsibility."""
    UNROUTABLE = "unroutable"
    """There is no such queue; it was not taken."""
    REFUSED = "refused"
    """The broker said no (full queue, alarm); it was not taken."""
    UNKNOWN = "unknown"
    """No answer in time: it may or may not have been taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportCapabilities:
    """What a transport can keep; the rows of the capability table."""

    name: str
    modes: frozenset[TransactionMode]
    durable: bool
    """Whether a delivered but unacknowledged message survives a kill of the consumer."""
    note: str = ""


class Receiver(Protocol):
    """One consumer of one queue, used by one thread (but for ``interrupt``)."""

    def receive(self, limit: int, wait: float) -> list[Received]:
        """Return up to *limit* messages, in order; wait at most *wait* seconds for the first.

        Returns early and empty when interrupted. Never raises for what is in a message: an
        unreadable envelope is a ``Received`` with its *defect*. Raises TransportUnavailable.
        """
        ...

    def ack(self, received: Sequence[Received], *, transaction: Transaction | None = None) -> None:
        """Settle messages for good; in *transaction*, with its commit.

        Raises LeaseLost where another owner has one of them by now (roll back then).
        """
        ...

    def release(self, received: Sequence[Received]) -> None:
        """Give messages back, to be delivered again at once, in their order where possible."""
        ...

    def interrupt(self) -> None:
        """Make a waiting ``receive`` return; may be called from any thread."""
        ...

    def close(self) -> None:
        """Stop consuming; what is unacknowledged goes back. Closing twice is fine."""
        ...


class TransportSession(Protocol):
    """A connection used by one thread at a time. Every method raises TransportUnavailable."""

    def create_queues(self, names: Sequence[str], *, dead_letter_to: str | None = None) -> None:
        """Create the queues that do not exist, durable; twice and concurrently is fine.

        An existing queue is left as it is. *dead_letter_to* is where a broker moves what it
        gives up on (a delivery limit), so that a limit moves and never drops.
        """
        ...

    def missing_queues(self, names: Collection[str]) -> list[str]:
        """Return those of *names* that do not exist."""
        ...

    def delete_queues(self, names: Collection[str]) -> None:
        """Delete queues and what is in them; missing ones are fine."""
        ...

    def count(self, queue: str) -> int:
        """Return how many messages wait in *queue* (about)."""
        ...

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Put messages into queues; return what became of each, in order.

        A message is durable when it is CONFIRMED (in *transaction*: when that commits). The
        message's own id is kept. Headers that steer a broker are not passed on.
        """
        ...

    def receiver(self, queue: str, *, prefetch: int) -> Receiver:
        """Return a consumer of *queue*, which must exist (QueueMissing)."""
        ...

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a transaction for ``send``, ``ack`` and a store: commits, or rolls back on error.

        Only where the capabilities name SENDS_ATOMIC_WITH_RECEIVE.
        """
        ...

    def ping(self) -> None:
        """Return if the broker answers."""
        ...

    def close(self) -> None:
        """Let go of the connection; closing twice is fine."""
        ...


class Transport(Protocol):
    """How queues are reached. Opens nothing until a session is asked for."""

    @property
    def capabilities(self) -> TransportCapabilities:
        """What it can keep."""
        ...

    @property
    def database(self) -> Database | None:
        """The SQL database whose tables the queues are, if so."""
        ...

    def describe(self) -> str:
        """Return the URL with every secret masked."""
        ...

    def install(self) -> None:
        """Create what queues rest in (tables); twice and concurrently is fine."""
        ...

    def ddl(self) -> str:
        """Return the statements that ``install`` would run, or an empty text."""
        ...

    def check(self) -> None:
        """Raise SchemaMissing, with the command to run, where ``install`` is needed."""
        ...

    def session(self) -> TransportSession:
        """Return a new session; it connects on first use."""
        ...

    def close(self) -> None:
        """Close what is shared between sessions; closing twice is fine."""
        ...
