"""Queues that are deleted with their owners or when unused, and messages that expire."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    delete,
    exists,
    insert,
    literal_column,
    select,
    update,
)

from timeoutmgr.contracts import Clock
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database
from timeoutmgr.database.round_trips import DriverStatement
from timeoutmgr.message.instants import Micros
from timeoutmgr.resilience.after_fork import cached_property
from timeoutmgr.transport.sql.leases import LeaseRenewer, Leases
from timeoutmgr.transport.sql.options import QueueOptions, options_of
from timeoutmgr.transport.sql.statements import insert_missing, queue_statements
from timeoutmgr.transport.sql.tables import QueueTables
from timeoutmgr.transport.work import parts

_BATCH: Final = 200
_SWEEP_EVERY: Final = 10.0
"""Seconds between two sweeps of a process; a sweep with nothing to delete is three reads."""
_LONGEST_SLACK: Final = 60_000_000
"""Maximum of the extra time (a tenth) by which a declaration extends its queue's expiry. Later
declarations need not write until it is used up: Celery's clients declare their reply queue for each
task."""


class Standing(NamedTuple):
    """A queue's number of messages, its time left, and whether we are an owner of it."""

    messages: int
    left: Micros | None
    is_mine: bool | int

    def meets(self, options: QueueOptions) -> bool:
        """Return whether another declaration with *options* would change nothing."""
        if options.is_temporary and not self.is_mine:
            return False
        return options.expires is None or (self.left or 0) >= options.expires


class OwnershipStatements:
    """The statements on owners and on expired queues; the comments name the parameters."""

    def __init__(self, tables: QueueTables, database: Database) -> None:
        queues, owners, messages = tables.queues, tables.owners, tables.messages
        named = queues.c.name == bindparam("queue")
        # --- a declaration, a use: queue, until; owner, consuming
        self.use: Final = update(queues).where(named).values(expires_at=bindparam("until"))
        has_clock = database.dialect.now is not None
        now: ColumnElement[int] = (
            literal_column(str(database.dialect.now)) if has_clock else bindparam("now")
        )
        is_mine = exists().where(
            owners.c.queue == bindparam("queue"), owners.c.owner == bindparam("me")
        )
        shared = queue_statements(tables, database.dialect)
        count = shared.count_unexpired.scalar_subquery()
        self.standing: Final = select(count, queues.c.expires_at - now, is_mine).where(named)
        self.lock: Final = select(queues.c.options).where(named).with_for_update()
        self.of_queue: Final = select(owners.c.owner, owners.c.consuming).where(
            owners.c.queue == bindparam("queue")
        )
        self.add: Final = insert_missing(insert(owners), database.dialect)
        # An UPDATE does not expose the names of its columns.
        mine = (owners.c.queue == bindparam("its_queue")) & (owners.c.owner == bindparam("me"))
        self.set_consuming: Final = (
            update(owners).where(mine).values(consuming=bindparam("is_consuming"))
        )

        # --- a sweep: now; names, queue, owners
        self.owners: Final = select(owners.c.owner).distinct()
        self.ownerships: Final = select(owners.c.queue, owners.c.owner)
        by_owner = owners.c.owner.in_(bindparam("owners", expanding=True))
        self.queues_of: Final = select(owners.c.queue).where(by_owner).distinct()
        is_consumed = exists().where(owners.c.queue == queues.c.name, owners.c.consuming == 1)
        self.unused: Final = select(queues.c.name).where(
            queues.c.expires_at <= bindparam("now"), ~is_consumed
        )
        self.expires_at: Final = select(queues.c.expires_at).where(named)
        self.remove_owners: Final = delete(owners).where(
            by_owner, owners.c.queue == bindparam("queue")
        )
        ended = (
            messages.c.discard_at <= bindparam("now"),
            messages.c.lease_until <= bindparam("now"),
        )
        self.ended: Final = (
            select(messages.c.sequence).where(*ended).order_by(messages.c.discard_at).limit(_BATCH)
        )
        self.lock_ended: Final = self.ended.with_for_update(skip_locked=True)
        self.delete_ended: Final = shared.delete_chosen
        self.delete_queue: Final = shared.delete_whole


class OwnedQueues:
    """The owned queues of one table set, for one owner of leases. Safe for many threads.

    Every change locks the queue's row first, so that no queue is deleted under a new owner.
    """

    def __init__(
        self,
        database: Database,
        tables: QueueTables,
        leases: Leases,
        renewer: LeaseRenewer,
        clock: Clock,
    ) -> None:
        self._database = database
        self._leases = leases
        self._renewer = renewer
        self._clock = clock
        self._statements: Final = OwnershipStatements(tables, database)
        self._owns = False
        self._next_sweep = 0.0

    def standing(self, queue: str) -> Standing | None:
        """Return the standing of *queue*; None if there is no such queue."""
        where: dict[str, Any] = {"queue": queue, "me": self._leases.owner}
        if self._database.can_pipeline:
            rows = self._database.run_alone(self._standing_alone, where)
        else:
            where |= self._database.now_of_host(self._clock)
            with self._database.read() as connection:
                rows = connection.execute(self._statements.standing, where).all()
        return Standing(*rows[0]) if rows else None

    @cached_property
    def _standing_alone(self) -> DriverStatement:
        return DriverStatement(self._statements.standing, self._database.engine)

    def declare(self, queue: str, options: QueueOptions, *, consuming: bool = False) -> str | None:
        """Make us an owner of *queue*, and extend its expiry.

        If another living owner has *queue* exclusively, return that owner.
        """
        if options.is_temporary or consuming:
            self._renewer.keep_session_lock()
            self._owns = True
        # Before the transaction: the search for dead owners needs a connection of its own.
        dead = self._dead_owners_of(queue) if options.exclusive else set()

        def work(connection: Connection) -> str | None:
            if self._locked(queue, connection) is None:
                return None
            if options.exclusive and (others := self._others_of(queue, connection) - dead):
                return min(others)
            if options.is_temporary or consuming:
                self._own(queue, consuming, connection)
            self._put_off(queue, options, connection)
            return None

        return self._database.run(work)

    def leave(self, queue: str) -> None:
        """Stop consuming *queue*; delete an auto-delete queue if we were its last consumer."""

        def work(connection: Connection) -> None:
            options = self._locked(queue, connection)
            if options is None:
                return
            self._set_consuming(queue, 0, connection)
            owners = connection.execute(self._statements.of_queue, {"queue": queue}).all()
            if options.auto_delete and not any(consuming for _, consuming in owners):
                self._delete(queue, connection)
            else:
                self._put_off(queue, options, connection)

        self._database.run(work)

    def leave_all(self) -> None:
        """End our ownership of every queue."""
        if self._owns:
            self._remove_owners({self._leases.owner})
            self._owns = False

    @property
    def is_sweep_due(self) -> bool:
        """Whether this owner's last sweep was long enough ago."""
        return time.monotonic() >= self._next_sweep

    def sweep_in_time(self) -> None:
        """Sweep, if a sweep is due."""
        if self.is_sweep_due:
            self._next_sweep = time.monotonic() + _SWEEP_EVERY
            self.sweep()

    def sweep(self) -> None:
        """Delete queues of dead owners, unused queues, and expired messages."""
        with self._database.read() as connection:
            now = self._database.now_in(connection, self._clock)
            owners = set(connection.execute(self._statements.owners).scalars())
            unused = list(connection.execute(self._statements.unused, {"now": now}).scalars())
            ended = connection.execute(self._statements.ended, {"now": now}).first()
        if others := owners - {self._leases.owner}:
            self._remove_owners(self._leases.session_locks.dead_owners(others))
        for queue in sorted(unused):
            self._database.run(partial(self._end_use, queue, now))
        while ended is not None and self._database.run(lambda own: self._discard(now, own)):
            reach("owned_queues.discarded")

    def count_dead(self) -> int:
        """Return how many queues have only dead owners; the next sweep deals with them."""
        with self._database.read() as connection:
            found = connection.execute(self._statements.ownerships).all()
        others = {owner for _, owner in found} - {self._leases.owner}
        dead = self._leases.session_locks.dead_owners(others)
        queues = {queue for queue, _ in found}
        return len(queues - {queue for queue, owner in found if owner not in dead})

    def _dead_owners_of(self, queue: str) -> set[str]:
        with self._database.read() as connection:
            others = self._others_of(queue, connection)
        return self._leases.session_locks.dead_owners(others)

    def _others_of(self, queue: str, connection: Connection) -> set[str]:
        found = connection.execute(self._statements.of_queue, {"queue": queue}).scalars()
        return set(found) - {self._leases.owner}

    def _own(self, queue: str, consuming: bool, connection: Connection) -> None:
        row = {"queue": queue, "owner": self._leases.owner, "consuming": 0}
        connection.execute(self._statements.add, [row])
        if consuming:
            self._set_consuming(queue, 1, connection)

    def _set_consuming(self, queue: str, flag: int, connection: Connection) -> None:
        which = {"its_queue": queue, "me": self._leases.owner, "is_consuming": flag}
        connection.execute(self._statements.set_consuming, which)

    def _remove_owners(self, owners: Collection[str]) -> None:
        for some in parts(sorted(owners), _BATCH):
            with self._database.read() as connection:
                found = connection.execute(self._statements.queues_of, {"owners": some})
                queues = sorted(found.scalars())
            for part in parts(queues, _BATCH):
                self._database.run(partial(self._remove, part, some))
                reach("owned_queues.removed")

    def _remove(self, queues: list[str], owners: list[str], connection: Connection) -> None:
        for queue in queues:
            options = self._locked(queue, connection)
            which = {"queue": queue, "owners": owners}
            connection.execute(self._statements.remove_owners, which)
            if options is None:
                continue
            left = connection.execute(self._statements.of_queue, {"queue": queue}).first()
            if left is None and options.is_temporary:
                self._delete(queue, connection)
            elif left is None:
                self._put_off(queue, options, connection)

    def _end_use(self, queue: str, now: int, connection: Connection) -> None:
        if self._locked(queue, connection) is None:
            return
        owners = connection.execute(self._statements.of_queue, {"queue": queue}).all()
        end = connection.execute(self._statements.expires_at, {"queue": queue}).scalar()
        is_consumed = any(consuming for _, consuming in owners)
        if end is not None and end <= now and not is_consumed:
            self._delete(queue, connection)

    def _discard(self, now: int, connection: Connection) -> int:
        found = connection.execute(self._statements.lock_ended, {"now": now})
        if sequences := list(found.scalars()):
            connection.execute(self._statements.delete_ended, {"sequences": sequences})
        return len(sequences)

    def _locked(self, queue: str, connection: Connection) -> QueueOptions | None:
        found = connection.execute(self._statements.lock, {"queue": queue}).first()
        return None if found is None else options_of(found.options)

    def _put_off(self, queue: str, options: QueueOptions, connection: Connection) -> None:
        if options.expires is not None:
            slack = min(options.expires // 10, _LONGEST_SLACK)
            now = self._database.now_in(connection, self._clock)
            until = now + options.expires + slack
            connection.execute(self._statements.use, {"queue": queue, "until": until})

    def _delete(self, queue: str, connection: Connection) -> None:
        for statement in self._statements.delete_queue:
            connection.execute(statement, {"names": [queue]})
            reach("owned_queues.deleting")
