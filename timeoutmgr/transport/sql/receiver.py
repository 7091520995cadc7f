"""A consumer of one queue: leases in order, and sleeps while there is nothing."""

import threading
import time
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database
from timeoutmgr.database.commits import after_commit
from timeoutmgr.errors import LeaseLost
from timeoutmgr.message import Received
from timeoutmgr.transport.byte_budget import ByteBudget, Held
from timeoutmgr.transport.sql.bells import Bell
from timeoutmgr.transport.sql.envelopes import LeasedRow, Tag, from_row
from timeoutmgr.transport.sql.failures import as_transport
from timeoutmgr.transport.sql.keeper import LeaseKeeper
from timeoutmgr.transport.sql.leases import LARGEST_LEASE, Leases
from timeoutmgr.transport.sql.watch import Watch


class SqlReceiver:
    """A consumer of one queue, as ``contracts.Receiver`` says.

    *prefetch* bounds how many messages it has unacknowledged; 0 is no bound. *budget* bounds the
    bytes of their bodies.
    """

    def __init__(
        self,
        queue: str,
        prefetch: int,
        *,
        database: Database,
        leases: Leases,
        keeper: LeaseKeeper,
        bell: Bell,
        watch: Watch,
        owner_check: float,
        budget: ByteBudget,
    ) -> None:
        self.queue: Final = queue
        self._prefetch = prefetch
        self._database = database
        self._leases = leases
        self._keeper = keeper
        self._bell = bell
        self._watch = watch
        self._owner_check = owner_check
        self._next_owner_check = 0.0
        self._left = True
        self._lock = threading.Lock()
        self._held: dict[Tag, None] = {}
        self._bytes = Held(budget)
        # About to be leased: ours from before the commit, so that nobody takes them for orphans.
        self._taking: list[Tag] = []
        # Acknowledged in a transaction that has not ended yet.
        self._settling: set[Tag] = set()
        self._interrupted = threading.Event()
        self._closed = False
        with as_transport(database):
            keeper.add(self)

    def receive(self, limit: int, wait: float) -> list[Received]:
        """Return up to *limit* messages; wait at most *wait* seconds for the first."""
        return [from_row(self.queue, row) for row in self.receive_rows(limit, wait)]

    def receive_rows(self, limit: int, wait: float) -> Sequence[LeasedRow]:
        """Return what ``receive`` does, as rows with kombu's properties."""
        # A thread's wait is real, whatever time an injected clock shows.
        until = time.monotonic() + wait
        if self._room() <= 0:
            # Only an acknowledgement makes room, and that is this very thread's to give.
            self._interrupted.wait(wait)
            self._interrupted.clear()
            return []
        rows = [] if self._is_known_empty() else self._look(limit)
        while not rows:
            if self._interrupted.is_set():
                self._interrupted.clear()
                break
            if time.monotonic() >= until:
                break
            self._watch.rest(until)
            if self._is_worth_a_look():
                rows = self._look(limit)
        return rows

    def poll_rows(self, limit: int) -> Sequence[LeasedRow]:
        """Return rows without waiting, and without a look while nothing can have come."""
        return self._look(limit) if self._is_worth_a_look() else []

    def ack(self, received: Sequence[Received], *, transaction: Connection | None = None) -> None:
        """Settle messages for good; in *transaction*, with its commit."""
        self.ack_tags(_tags(received), transaction)

    def ack_tags(self, tags: list[Tag], transaction: Connection | None = None) -> None:
        """Do what ``ack`` does, by tags."""
        if not tags:
            return
        with as_transport(self._database):
            if transaction is None:
                try:
                    self._leases.ack(tags, None)
                except LeaseLost:
                    self._forget(tags)
                    raise
                self._forget(tags)
                return
            self._leases.ack(tags, transaction)
            with self._lock:
                self._settling.update(tags)
            after_commit(transaction, lambda: self._forget(tags))

    def release(self, received: Sequence[Received]) -> None:
        """Give messages back, to be delivered again at once, in their order."""
        self.release_tags(_tags(received))

    def release_tags(self, tags: list[Tag]) -> None:
        """Do what ``release`` does, by tags."""
        if not tags:
            return
        with as_transport(self._database):
            self._leases.release(self.queue, tags)
        self._forget(tags)
        self._bell.ring()

    def interrupt(self) -> None:
        """Make a waiting ``receive`` return; may be called from any thread."""
        self._interrupted.set()
        self._bell.ring()

    def close(self) -> None:
        """Stop consuming; what is unacknowledged goes back."""
        if self._closed:
            return
        self._closed = True
        self._keeper.remove(self)
        held = self.held()
        try:
            self.release_tags(held)
        except BaseException:
            # Given back as soon as the database answers; nobody renews them from here on.
            self._keeper.orphan(self.queue, held)
            self._bytes.clear()
            raise

    def held(self) -> list[Tag]:
        """Return what is leased, or about to be, and not settled."""
        with self._lock:
            return [*self._held, *self._taking]

    def _look(self, limit: int) -> Sequence[LeasedRow]:
        limit = min(limit, self._room())
        if limit <= 0:
            return []
        left = True
        with as_transport(self._database):
            # Before the look, as below.
            self._keeper.give_back()
            self._watch.looking()
            if time.monotonic() >= self._next_owner_check:
                # Before the look, so that what comes back keeps its place in the order.
                left = self._leases.free_of_gone(self.queue)
                self._next_owner_check = time.monotonic() + self._owner_check
            rows = self._take(limit) if left else []
        if rows:
            reach("leases.committed")
            self._watch.found()
        else:
            self._watch.found_nothing(left)
        return rows

    def _take(self, limit: int) -> Sequence[LeasedRow]:
        try:
            # What is being settled counts until its transaction has ended.
            room = self._bytes.room
            rows = self._leases.take(self.queue, limit, self._about_to_take, room)
        except BaseException:
            with self._lock:
                tags, self._taking = self._taking, []
            # The commit may have happened; if so, nobody has them in hand.
            self._keeper.orphan(self.queue, tags)
            raise
        with self._lock:
            for row in rows:
                tag = (row.sequence, row.delivery_count + 1)
                self._held[tag] = None
                self._bytes.add(tag, row.size)
            self._taking = []
        return rows

    def _about_to_take(self, tags: list[Tag]) -> None:
        with self._lock:
            self._taking = tags

    def _is_known_empty(self) -> bool:
        with as_transport(self._database):
            return self._watch.is_known_empty()

    def _is_worth_a_look(self) -> bool:
        with as_transport(self._database):
            return self._watch.is_worth_a_look()

    def _room(self) -> int:
        with self._lock:
            if self._bytes.is_full:
                return 0
            if not self._prefetch:
                return LARGEST_LEASE
            return self._prefetch - len(self._held) + len(self._settling)

    def _forget(self, tags: list[Tag]) -> None:
        with self._lock:
            for tag in tags:
                self._held.pop(tag, None)
                self._bytes.settle(tag)
                self._settling.discard(tag)


def _tags(received: Sequence[Received]) -> list[Tag]:
    tags: list[Tag] = []
    for one in received:
        if not isinstance(one.tag, tuple):
            raise TypeError(f"{one.tag!r} is no tag of the SQL queue; was it received elsewhere?")
        tags.append(one.tag)
    return tags
