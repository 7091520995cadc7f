"""Leases: which rows are whose, for how long, and what becomes of those whose owner died.

A row is leased by setting its owner and an end; it stays in the table until it is acknowledged.
Three things end a lease: acknowledgement, its owner's death (seen by the owner's lock, at once),
and its end, which a living owner keeps moving on.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row

from timeoutmgr.contracts import Clock
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database
from timeoutmgr.database.owners import OwnerLives
from timeoutmgr.errors import LeaseLost
from timeoutmgr.instants import duration_micros
from timeoutmgr.transport.sql.envelopes import LeasedRow, Tag
from timeoutmgr.transport.sql.listener import notify
from timeoutmgr.transport.sql.settings import SqlQueueSettings
from timeoutmgr.transport.sql.statements import Statements

LARGEST_LEASE: Final = 500
"""Rows that one transaction leases at most; also keeps far from SQLite's 999 parameters."""


_ANY_SIZE: Final = 2**31 - 1


class Leases:
    """The leases of one owner in one queue table. Safe for many threads.

    *channel* is where PostgreSQL's listeners are told of what was given back.
    """

    def __init__(
        self,
        database: Database,
        statements: Statements,
        owner: str,
        clock: Clock,
        settings: SqlQueueSettings,
        channel: str | None,
    ) -> None:
        self.owner: Final = owner
        self._database = database
        self._statements = statements
        self._clock = clock
        self._lease = duration_micros(settings.lease)
        self._channel = channel
        self._lives = OwnerLives(database)

    def begin(self) -> None:
        """Start our owner's life, which must precede its first lease; twice is fine."""
        self._lives.begin(self.owner)

    def live(self) -> None:
        """Take our owner's lock again where it was lost. Raises StorageUnavailable."""
        self._lives.renew(self.owner)

    def end(self) -> None:
        """End our owner's life; what it still holds is free."""
        self._lives.end(self.owner)

    def now(self) -> dict[str, int]:
        """Return the parameter that statements need where the database has no clock."""
        return {"now": self._clock.now()} if self._statements.needs_now else {}

    def take(
        self,
        queue: str,
        limit: int,
        before_commit: Callable[[list[Tag]], None],
        room: int | None = None,
    ) -> list[LeasedRow]:
        """Lease up to *limit* rows of *queue*, in their order, and return them.

        Of rows whose bodies are more than *room* bytes together the first that fit, at least one.

        Their delivery count is the one before this delivery. It is committed when this returns;
        where this raises, what *before_commit* was called with last may be leased all the same.
        An owner that has lost its lock takes it again first: what it leases would be free to all.
        """
        if not self._lives.is_unbroken(self.owner):
            self.live()
        where = {"queue": queue, **self.now()}
        if self._database.is_sqlite:
            # A look costs nobody anything; the write lock is the whole database's.
            with self._database.read() as connection:
                if connection.execute(self._statements.probe, where).first() is None:
                    return []

        most = min(limit, LARGEST_LEASE)
        # So many of the largest that are read at once are no more than there is room for.
        inline = _ANY_SIZE if room is None else room // most

        def lease(connection: Connection) -> list[LeasedRow]:
            found = connection.execute(
                self._statements.free_rows, {**where, "limit": most, "inline": inline}
            ).all()
            rows = self._with_bodies(_fitting(found, room), connection)
            if rows:
                before_commit([(row.sequence, row.delivery_count + 1) for row in rows])
                connection.execute(
                    self._statements.lease,
                    {
                        "sequences": [row.sequence for row in rows],
                        "me": self.owner,
                        "lease": self._lease,
                        **self.now(),
                    },
                )
                reach("leases.written")
            return rows

        return self._database.run(lease)

    def _with_bodies(self, rows: Sequence[Row[Any]], connection: Connection) -> list[LeasedRow]:
        large = [row.sequence for row in rows if row.body is None]
        bodies: dict[int, bytes] = {}
        if large:
            read = connection.execute(self._statements.bodies, {"sequences": large})
            bodies = {row.sequence: row.body for row in read}
        return [
            LeasedRow(
                sequence=row.sequence,
                message_id=row.message_id,
                headers=row.headers,
                body=bodies[row.sequence] if row.body is None else row.body,
                content_type=row.content_type,
                content_encoding=row.content_encoding,
                delivery_count=row.delivery_count,
                properties=row.properties,
                size=int(row.size),
            )
            for row in rows
        ]

    def renew(self, tags: Collection[Tag]) -> None:
        """Move on the end of leases; those that were lost or settled meanwhile are left out."""
        for part in _parts(sorted(sequence for sequence, _ in tags)):

            def extend(connection: Connection, sequences: list[int] = part) -> None:
                # Passing by locked rows: an acknowledgement in a long transaction holds them,
                # and waiting for it would let the other leases lapse.
                held = connection.execute(
                    self._statements.held, {"sequences": sequences, "me": self.owner}
                )
                if still := list(held.scalars()):
                    connection.execute(
                        self._statements.renew,
                        {"sequences": still, "lease": self._lease, **self.now()},
                    )

            self._database.run(extend)
            reach("leases.renewed")

    def ack(self, tags: Collection[Tag], connection: Connection | None) -> None:
        """Delete the rows of *tags*; raise LeaseLost where one is not ours any more.

        Without a *connection* those that are still ours are settled all the same.
        """

        def settle(connection: Connection) -> int:
            return self._on_each(self._statements.ack, tags, connection)

        settled = self._database.run(settle) if connection is None else settle(connection)
        if settled < len(tags):
            raise LeaseLost(
                f"{len(tags) - settled} of {len(tags)} messages were not acknowledged: their "
                "lease ended, and another consumer has them by now"
            )

    def leased(self, tags: Collection[Tag]) -> set[Tag]:
        """Return those of *tags* that are leases of ours as they stand now."""
        found: set[Tag] = set()
        with self._database.read() as connection:
            for part in _parts(sorted(sequence for sequence, _ in tags)):
                where = {"sequences": part, "me": self.owner}
                rows = connection.execute(self._statements.deliveries, where)
                found.update((row.sequence, row.delivery_count) for row in rows)
        return found.intersection(tags)

    def release(self, queue: str, tags: Collection[Tag]) -> None:
        """Give the rows of *tags* back; those that are not ours any more are left alone."""

        def give_back(connection: Connection) -> None:
            if self._on_each(self._statements.release, tags, connection) and self._channel:
                notify(connection, self._channel, [queue])

        self._database.run(give_back)

    def free_of_gone(self, queue: str) -> bool:
        """Free what owners who died hold of *queue*; return whether it holds any row at all."""
        with self._database.read() as connection:
            found = connection.execute(self._statements.head_owners, {"queue": queue})
            owners = set(found.scalars())
        others = owners - {None, self.owner}
        gone = self._lives.gone(others) if others else set()
        if not gone:
            return bool(owners)

        def free(connection: Connection) -> None:
            where = {"queue": queue, "owners": sorted(gone)}
            sequences = list(connection.execute(self._statements.of_owners, where).scalars())
            for part in _parts(sequences):
                connection.execute(self._statements.free_chosen, {"sequences": part})
                reach("leases.freed")

        self._database.run(free)
        reach("leases.gone_freed")
        return True

    def _on_each(self, statement: Any, tags: Collection[Tag], connection: Connection) -> int:
        """Run *statement* on *tags*, those of one delivery count together; return rows met."""
        by_delivery: dict[int, list[int]] = {}
        for sequence, delivery in tags:
            by_delivery.setdefault(delivery, []).append(sequence)
        met = 0
        for delivery, sequences in by_delivery.items():
            for part in _parts(sorted(sequences)):
                where = {"sequences": part, "me": self.owner, "delivery": delivery}
                met += connection.execute(statement, where).rowcount
                reach("leases.settled")
        return met


def _fitting(rows: Sequence[Row[Any]], room: int | None) -> Sequence[Row[Any]]:
    """Return the first of *rows* whose bodies fit into *room*, or one that does not."""
    if room is None:
        return rows
    for count, row in enumerate(rows):
        room -= int(row.size)
        if room < 0 and count:
            return rows[:count]
    return rows


def _parts(sequences: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(sequences), LARGEST_LEASE):
        yield sequences[start : start + LARGEST_LEASE]
