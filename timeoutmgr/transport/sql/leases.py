"""Leases of queue rows: who owns a row, until when, and how a dead owner's leases end.

A lease sets the owner and the expiry of a row; the row stays in the table until it is acknowledged.
Three things end a lease: the acknowledgement, the owner's death (its session lock shows it at
once), and the expiry, which a living owner keeps extending.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Row

from timeoutmgr.contracts import Clock
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database
from timeoutmgr.database.session_locks import SessionLocks
from timeoutmgr.errors import LeaseLost, TimeoutManagerError
from timeoutmgr.message.instants import duration_micros
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import begin_anew_after_fork, own_name
from timeoutmgr.resilience.thread_task import begin_thread
from timeoutmgr.transport.sql.settings import SqlQueueSettings
from timeoutmgr.transport.sql.statements import FrontStatements, LeaseStatements, read_by_index
from timeoutmgr.transport.sql.tables import LeasedRow, LeaseTag
from timeoutmgr.transport.sql.wakeups import QueueWakeups, notify
from timeoutmgr.transport.work import BATCH_BYTES, parts, sub_batches

logger = logging.getLogger(__name__)

Found = TypeVar("Found", Row[Any], LeasedRow)

LARGEST_LEASE: Final = 500
"""Maximum number of rows that one transaction leases; far below SQLite's 999 parameters."""
_SLICE: Final = 2 * 1024 * 1024
"""Bytes of a large body that PostgreSQL sends at a time. It sends them as hexadecimal text, and the
driver holds the text, its own buffer of up to twice that, and the bytes: 112 MiB for 16 MiB."""


class Leases:
    """The leases of one owner in one queue table. Safe for many threads.

    *channel* is the PostgreSQL channel that announces messages which were given back.
    """

    _any_size: Final = 2**31 - 1

    def __init__(
        self,
        database: Database,
        statements: LeaseStatements,
        owner: str,
        clock: Clock,
        settings: SqlQueueSettings,
        channel: str | None,
    ) -> None:
        self.owner = owner
        self._database = database
        self._statements = statements
        self._clock = clock
        self._lease = duration_micros(settings.lease)
        self._channel = channel
        self.session_locks: Final = SessionLocks(database)
        """Acquired before the owner's first lease: without the lock, its leases count as free."""
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Make this child process an owner of its own: the leases belong to the parent."""
        self.owner = own_name(self.owner)

    def lease_rows(
        self,
        queue: str,
        limit: int,
        before_commit: Callable[[list[LeaseTag]], None],
        room: int | None = None,
        front: FrontStatements | None = None,
    ) -> list[LeasedRow]:
        """Lease up to *limit* rows of *queue*, in their order, and return them.

        If the bodies together exceed *room* bytes or BATCH_BYTES, lease the first rows that fit, at
        least one row: a pump settles a batch before it receives the next.

        *front* is the order of a queue with options. The delivery count excludes this delivery. The
        leases are committed when the call returns; if it raises, the rows last passed to
        *before_commit* may be leased all the same. An owner that has lost its session lock acquires
        it again first: otherwise everybody could free its leases.
        """
        if not self.session_locks.is_unbroken(self.owner):
            self.session_locks.renew(self.owner)
        where = {"queue": queue, **self._database.now_of_host(self._clock)}
        statements = front or self._statements
        if self._database.is_sqlite and not self._is_free(where, statements):
            return []
        most, room, inline = self._bounds(limit, room)

        def lease(connection: Connection) -> list[LeasedRow]:
            read_by_index(connection)
            found = connection.execute(
                statements.free_rows, {**where, "limit": most, "inline": inline}
            ).all()
            rows = self._with_bodies(fitting(found, room), connection)
            if rows:
                before_commit([(row.sequence, row.delivery_count + 1) for row in rows])
                connection.execute(
                    self._statements.lease,
                    {
                        "sequences": [row.sequence for row in rows],
                        "me": self.owner,
                        "lease": self._lease,
                        **self._database.now_of_host(self._clock),
                    },
                )
                reach("leases.written")
            return rows

        return self._database.run(lease)

    def _bounds(self, limit: int, room: int | None) -> tuple[int, int | None, int]:
        """Return the number of rows to ask for, the bytes to lease, and the largest body to read.

        Bodies up to that size are read with their rows: even if all are that large, they fit.
        """
        most = min(limit, LARGEST_LEASE)
        if room is None:
            return most, None, self._any_size
        room = min(room, BATCH_BYTES)
        return most, room, min(room // most, _SLICE)

    def remove_rows(
        self, queue: str, limit: int, front: FrontStatements | None = None
    ) -> tuple[list[LeasedRow], bool]:
        """Delete up to *limit* rows of *queue* in their order, without a lease.

        Return the rows, and whether there may be more. The commit does not wait for the server's
        disk, as in ``ack`` with *lazily*.
        """
        where = {"queue": queue, **self._database.now_of_host(self._clock)}
        statements = front or self._statements
        if self._database.is_sqlite and not self._is_free(where, statements):
            return [], False
        bounds = {"limit": min(limit, LARGEST_LEASE), "inline": self._any_size}

        def remove(connection: Connection) -> tuple[list[LeasedRow], bool]:
            read_by_index(connection, commit_lazily=True)
            found = connection.execute(statements.free_rows, {**where, **bounds}).all()
            if not found:
                return [], False
            sequences = [row.sequence for row in found]
            connection.execute(self._statements.remove, {"sequences": sequences})
            rows = [LeasedRow._make(row) for row in found]
            return rows, connection.execute(statements.probe, where).first() is not None

        return self._database.run(remove)

    def _is_free(self, where: dict[str, Any], statements: FrontStatements) -> bool:
        # Read first: a read blocks nobody, but SQLite's write lock covers the whole database.
        with self._database.read() as connection:
            return connection.execute(statements.probe, where).first() is not None

    def _with_bodies(self, rows: Sequence[Row[Any]], connection: Connection) -> list[LeasedRow]:
        large = [row for row in rows if row.body is None]
        bodies: dict[int, bytes] = {}
        for some in sub_batches(large, BATCH_BYTES, lambda row: int(row.size)):
            bodies |= self._bodies(some, connection)
        leased = map(LeasedRow._make, rows)
        if not bodies:
            return list(leased)
        return [row._replace(body=bodies.get(row.sequence, row.body)) for row in leased]

    def _bodies(self, rows: Sequence[Row[Any]], connection: Connection) -> dict[int, bytes]:
        [first, *others] = rows
        if connection.dialect.name == "postgresql" and first.size > _SLICE and not others:
            return {first.sequence: self._in_slices(first, connection)}
        sequences = [row.sequence for row in rows]
        read = connection.execute(self._statements.bodies, {"sequences": sequences})
        return {row.sequence: row.body for row in read}

    def _in_slices(self, row: Row[Any], connection: Connection) -> bytes:
        where = {"sequence": row.sequence, "length": _SLICE}
        starts = range(1, int(row.size) + 1, _SLICE)
        slices = (
            connection.execute(self._statements.body_slice, {**where, "start": start})
            for start in starts
        )
        return b"".join(each.scalar_one() for each in slices)

    def renew(self, tags: Collection[LeaseTag]) -> None:
        """Extend the leases; skip leases that were lost or settled meanwhile."""
        for part in parts(sorted(sequence for sequence, _ in tags), LARGEST_LEASE):

            def extend(connection: Connection, sequences: list[int] = part) -> None:
                read_by_index(connection)
                # Skip locked rows: an acknowledgement in a long transaction has locked them, and
                # waiting for it would let the other leases expire.
                held = connection.execute(
                    self._statements.leased, {"sequences": sequences, "me": self.owner}
                )
                if still := list(held.scalars()):
                    now = self._database.now_of_host(self._clock)
                    where = {"sequences": still, "lease": self._lease, **now}
                    connection.execute(self._statements.renew, where)

            self._database.run(extend)
            reach("leases.renewed")

    def ack(
        self, tags: Collection[LeaseTag], connection: Connection | None, *, lazily: bool = False
    ) -> None:
        """Delete the rows of *tags*; raise LeaseLost if we no longer own a lease.

        Without a *connection*, the leases that we still own are settled all the same. *lazily*
        commits without waiting for the server's disk: after a crash of the server, the messages of
        the last moments may be delivered again. It suits consumers that expect no more than from a
        broker, which never confirms an acknowledgement.
        """
        settled = self._settled(tags, connection, lazily)
        if settled < len(tags):
            raise LeaseLost(
                f"{len(tags) - settled} of {len(tags)} messages were not acknowledged: their "
                "lease ended, and another consumer has them by now"
            )

    def _settled(
        self, tags: Collection[LeaseTag], connection: Connection | None, lazily: bool
    ) -> int:
        """Delete the rows of *tags* that we have leased; return how many."""

        def settle(connection: Connection) -> int:
            return self._on_each(self._statements.ack, tags, connection, lazily)

        return self._database.run(settle) if connection is None else settle(connection)

    def leased(self, tags: Collection[LeaseTag]) -> set[LeaseTag]:
        """Return the *tags* that we have leased now."""
        found: set[LeaseTag] = set()
        with self._database.read() as connection:
            read_by_index(connection)
            for part in parts(sorted(sequence for sequence, _ in tags), LARGEST_LEASE):
                where = {"sequences": part, "me": self.owner}
                rows = connection.execute(self._statements.deliveries, where)
                found.update((row.sequence, row.delivery_count) for row in rows)
        return found.intersection(tags)

    def leases_of(self, queue: str, front: FrontStatements) -> set[LeaseTag]:
        """Return the tags of all our leases of *queue*."""
        with self._database.read() as connection:
            read_by_index(connection)
            rows = connection.execute(front.leases_of, {"queue": queue, "me": self.owner})
            return {(row.sequence, row.delivery_count) for row in rows}

    def release(self, queue: str, tags: Collection[LeaseTag], *, patient: bool = True) -> None:
        """Give the rows of *tags* back; skip leases that we no longer own.

        If not *patient*, raise StorageConflict at once while SQLite has another writer.
        """

        def give_back(connection: Connection) -> None:
            if self._on_each(self._statements.release, tags, connection) and self._channel:
                notify(connection, self._channel, [queue])

        self._database.run(give_back, patient=patient)

    def free_dead_owners(self, queue: str, front: FrontStatements | None = None) -> bool:
        """Free dead owners' leases of *queue*; return whether it holds any row at all."""
        statements = front or self._statements
        with self._database.read() as connection:
            read_by_index(connection)
            found = connection.execute(statements.head_owners, {"queue": queue})
            last = {owner: sequence for owner, sequence in found}
        others = last.keys() - {None, self.owner}
        dead = self.session_locks.dead_owners(others) if others else set()
        if not dead:
            return bool(last)

        def free(connection: Connection) -> None:
            read_by_index(connection)
            head = max(last[owner] for owner in dead)
            where = {"queue": queue, "owners": sorted(dead), "last": head}
            sequences = list(connection.execute(statements.of_owners, where).scalars())
            for part in parts(sequences, LARGEST_LEASE):
                connection.execute(self._statements.free_chosen, {"sequences": part})
                reach("leases.freed")

        self._database.run(free)
        reach("leases.gone_freed")
        return True

    def _on_each(
        self,
        statement: Any,
        tags: Collection[LeaseTag],
        connection: Connection,
        lazily: bool = False,
    ) -> int:
        """Run *statement* on *tags*, grouped by delivery count; return the number of rows."""
        met = 0
        # Also in a caller's transaction: messages are settled after the caller's own statements.
        read_by_index(connection, commit_lazily=lazily)
        for delivery, sequences in by_delivery(tags):
            where = {"sequences": sequences, "me": self.owner, "delivery": delivery}
            met += connection.execute(statement, where).rowcount
            reach("leases.settled")
        return met


def by_delivery(tags: Collection[LeaseTag]) -> Iterator[tuple[int, list[int]]]:
    """Yield each delivery count of *tags* with as many sequences as one statement takes."""
    grouped: dict[int, list[int]] = {}
    for sequence, delivery in tags:
        grouped.setdefault(delivery, []).append(sequence)
    for delivery, sequences in grouped.items():
        for part in parts(sorted(sequences), LARGEST_LEASE):
            yield delivery, part


def fitting(rows: Sequence[Found], room: int | None) -> Sequence[Found]:
    """Return the first of *rows* whose bodies fit into *room*, at least one row."""
    if room is None:
        return rows
    for count, row in enumerate(rows):
        room -= int(row.size)
        if room < 0 and count:
            return rows[:count]
    return rows


# --- renewal of the leases that this process holds --------------------------------------------

_NOT_RENEWED: Final = {"event": "leases_not_renewed"}

_TRIES_PER_LEASE = 3


class Holder(Protocol):
    """A holder of leased messages."""

    def held(self) -> list[LeaseTag]:
        """Return the held leases; called from the renewer's thread."""
        ...


class LeaseRenewer:
    """A daemon thread that renews the leases of all holders, three times per lease duration.

    The thread renews the owner's session lock every *owner_check* seconds: an owner that lost the
    lock with a broken connection seems dead, and other owners would free its leases. The thread
    then also gives back leases that a holder could not give back in an outage.
    """

    def __init__(
        self, leases: Leases, wakeups: QueueWakeups, lease: float, owner_check: float
    ) -> None:
        self._leases, self._wakeups = leases, wakeups
        self._interval = lease / _TRIES_PER_LEASE
        self._tick = min(owner_check, self._interval)
        self.after_fork()
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Start with no leases to renew and no thread: both belong to the parent."""
        self.unreleased = UnreleasedLeases(self._leases, self._wakeups)
        self._holders: WeakSet[Holder] = WeakSet()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, holder: Holder) -> None:
        """Renew the leases of *holder* until its removal; start the thread and the session lock."""
        with self._lock:
            self._start()
            self._holders.add(holder)

    def keep_session_lock(self) -> None:
        """Acquire the owner's session lock, and keep it until ``stop``; twice is fine."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        self._leases.session_locks.acquire(self._leases.owner)
        if self._thread is None:
            # A stopped thread that has not ended yet keeps its own event.
            self._stop = stop = threading.Event()
            self._thread = begin_thread(partial(self._run, stop), "timeoutmgr-lease-renewer")

    def remove(self, holder: Holder) -> None:
        """Stop renewing the leases of *holder*; twice is fine."""
        with self._lock:
            self._holders.discard(holder)

    def give_back(self) -> None:
        """Give back unreleased leases, before a receiver leases more. Raises StorageUnavailable."""
        self.unreleased.give_back(self._held)

    def stop(self) -> None:
        """End the thread and release the owner's session lock; twice is fine."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is not None:
            thread.join()
        with self._lock:
            if self._thread is None:  # otherwise a holder came meanwhile
                self._leases.session_locks.release(self._leases.owner)

    def renew(self) -> int:
        """Renew all held leases once; return their number. Raises StorageUnavailable."""
        tags = self._held()
        self._leases.renew(tags)
        return len(tags)

    def _held(self) -> list[LeaseTag]:
        with self._lock:
            holders = list(self._holders)
        return [tag for holder in holders for tag in holder.held()]

    def _run(self, stop: threading.Event) -> None:
        renew_at = time.monotonic() + self._interval
        failing = False
        while not stop.wait(self._tick):
            try:
                self._leases.session_locks.renew(self._leases.owner)
                if time.monotonic() >= renew_at:
                    self.renew()
                    renew_at = time.monotonic() + self._interval
                self.give_back()
                failing = False
            except TimeoutManagerError as error:
                # Once per outage, not once a second.
                level = logging.DEBUG if failing else logging.WARNING
                logger.log(
                    level,
                    "owner %s could not renew its leases: %s",
                    self._leases.owner,
                    on_one_line(error),
                    extra=_NOT_RENEWED,
                )
                failing = True
            except Exception:
                # The thread must survive unforeseen errors: leases would expire unnoticed.
                logger.exception(
                    "owner %s could not renew its leases", self._leases.owner, extra=_NOT_RENEWED
                )


class UnreleasedLeases:
    """Our leases that no receiver holds any more; given back once the database answers.

    They are left over if the database goes away at the wrong time. The owner's session lock
    outlasts an outage, so nobody else would free them before they expire. Safe for many threads.
    """

    def __init__(self, leases: Leases, wakeups: QueueWakeups) -> None:
        self._leases: Final = leases
        self._wakeups: Final = wakeups
        self._lock = threading.Lock()
        # A receiver waits while another gives back: it must not lease the later messages first.
        self._release_lock = threading.Lock()
        self._tags: dict[str, set[LeaseTag]] = {}
        self._making = threading.Lock()
        self._doubtful: dict[str, FrontStatements] = {}

    def add(self, queue: str, tags: Collection[LeaseTag]) -> None:
        """Give *tags* of *queue*, which no receiver holds now, back when the database answers.

        Some of them may never have been leased.
        """
        with self._lock:
            if tags:
                self._tags.setdefault(queue, set()).update(tags)

    @contextmanager
    def one_lease(self, queue: str, front: FrontStatements) -> Iterator[None]:
        """Wrap a lease of *queue* whose tags are unknown until the database answers.

        If the answer is lost, all leases of *queue* that no receiver holds are given back.
        """
        with self._making:
            try:
                yield
            except BaseException:
                self._doubtful[queue] = front
                raise

    def give_back(self, held: Callable[[], Collection[LeaseTag]]) -> None:
        """Give all back except the *held* leases. Raises StorageUnavailable; they are kept then."""
        if not self._tags and not self._doubtful:
            return
        with self._release_lock:
            with self._making:  # no lease is still waiting for its answer
                for queue, front in list(self._doubtful.items()):
                    self.add(queue, self._leases.leases_of(queue, front))
                    del self._doubtful[queue]
            with self._lock:
                noted = {queue: set(tags) for queue, tags in self._tags.items()}
            for queue, tags in noted.items():
                self._give_back(queue, tags, held)
                with self._lock:
                    self._tags[queue] -= tags
                    if not self._tags[queue]:
                        del self._tags[queue]

    def _give_back(
        self, queue: str, tags: set[LeaseTag], held: Callable[[], Collection[LeaseTag]]
    ) -> None:
        # In this order: a lease whose commit was lost may not have happened, and another of our
        # receivers may have made the very same lease since. Leases are held from before the commit.
        leased = self._leases.leased(tags)
        if free := leased.difference(held()):
            self._leases.release(queue, free)
            self._wakeups.notify([queue])
