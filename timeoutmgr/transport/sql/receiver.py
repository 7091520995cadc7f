"""A consumer of one queue: it leases messages in order, and sleeps while there are none."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final

from sqlalchemy import Connection

from timeoutmgr.contracts import Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.database import Database, as_connection
from timeoutmgr.database.commits import after_commit
from timeoutmgr.errors import LeaseLost, StorageConflict
from timeoutmgr.message.message import Received
from timeoutmgr.transport.sql.leases import LARGEST_LEASE, LeaseRenewer, Leases
from timeoutmgr.transport.sql.statements import FrontStatements, as_transport
from timeoutmgr.transport.sql.tables import LeasedRow, LeaseTag, from_row
from timeoutmgr.transport.sql.wakeups import Wakeup, Watch
from timeoutmgr.transport.unsettled_messages import ByteBudget, UnsettledBytes


class SqlReceiver:
    """A consumer of one queue, as ``contracts.Receiver`` says.

    *prefetch* is the maximum number of unacknowledged messages; 0 is no maximum. *budget* limits
    the bytes of their bodies. *front* is the order of a queue with options.
    """

    def __init__(
        self,
        queue: str,
        prefetch: int,
        *,
        database: Database,
        leases: Leases,
        renewer: LeaseRenewer,
        wakeup: Wakeup,
        watch: Watch,
        owner_check: float,
        budget: ByteBudget,
        front: FrontStatements | None = None,
    ) -> None:
        self.queue: Final = queue
        self._prefetch = prefetch
        behind = None if front is None else front.behind
        self._fronts: Final = (front,) if behind is None else (front, behind)
        self._database = database
        self._leases = leases
        self._renewer = renewer
        self._wakeup = wakeup
        self._watch = watch
        self._owner_check = owner_check
        self._next_owner_check = 0.0
        self._left = True
        self._lock = threading.Lock()
        self._held: dict[LeaseTag, None] = {}
        self._bytes = UnsettledBytes(budget)
        # About to be leased: held from before the commit, so that the renewer does not return them.
        self._pending: list[LeaseTag] = []
        # Acknowledged in a transaction that is still open.
        self._settling: set[LeaseTag] = set()
        self._interrupted = threading.Event()
        self._closed = False
        with as_transport(database):
            renewer.add(self)

    def receive(self, limit: int, wait: float) -> list[Received]:
        """Return up to *limit* messages; wait at most *wait* seconds for the first."""
        return [from_row(self.queue, row) for row in self.receive_rows(limit, wait)]

    def receive_rows(
        self, limit: int, wait: float, *, for_good: bool = False
    ) -> Sequence[LeasedRow]:
        """Receive rows with kombu's properties; *for_good* deletes them at once."""
        # A thread waits in real time, whatever clock was injected.
        until = time.monotonic() + wait
        if self._room() <= 0:
            # Do not wait: only this very thread can make room, by an acknowledgement.
            self._interrupted.wait(wait)
            self._interrupted.clear()
            return []
        with as_transport(self._database):
            is_empty = self._watch.is_known_empty()
        rows = [] if is_empty else self._lease(limit, for_good)
        while not rows:
            if self._interrupted.is_set():
                self._interrupted.clear()
                break
            if time.monotonic() >= until or self._room() <= 0:
                break  # another receiver may have filled the budget: the next call waits for room
            self._watch.rest(until)
            if self._may_have_messages():
                rows = self._lease(limit, for_good)
        return rows

    def poll_rows(self, limit: int, *, for_good: bool = False) -> Sequence[LeasedRow]:
        """Receive rows without waiting, and without a query while nothing can have come."""
        return self._lease(limit, for_good) if self._may_have_messages() else []

    def ack(self, received: Sequence[Received], *, transaction: Transaction | None = None) -> None:
        """Settle messages; in *transaction*, when it commits."""
        connection = None if transaction is None else as_connection(transaction)
        self.ack_tags(_tags(received), connection)

    def ack_tags(
        self, tags: list[LeaseTag], transaction: Connection | None = None, *, lazily: bool = False
    ) -> None:
        """Settle messages by tags, as ``ack`` does; *lazily* as ``Leases.ack`` says."""
        if not tags:
            return
        with as_transport(self._database):
            if transaction is None:
                try:
                    self._leases.ack(tags, None, lazily=lazily)
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

    def release_tags(self, tags: list[LeaseTag]) -> None:
        """Give messages back by tags, as ``release`` does."""
        if not tags:
            return
        with as_transport(self._database):
            self._leases.release(self.queue, tags)
        self._forget_released(tags)

    def stand_back(
        self, received: Sequence[Received], _may_return: Callable[[Received], bool]
    ) -> int:
        """Release *received*; no message is sent ahead. Raises StorageConflict, see the contract.

        On SQLite, the slow handler may be the writer, and its batch ends only after this call.
        """
        tags = _tags(received)
        if not tags:
            return 0
        is_busy = False
        with as_transport(self._database):
            try:
                self._leases.release(self.queue, tags, patient=False)
            except StorageConflict:
                is_busy = True
        if is_busy:
            raise StorageConflict(f"{self._database.describe()} has another writer")
        self._forget_released(tags)
        return len(tags)

    def resize(self, prefetch: int) -> None:
        """Limit unacknowledged messages to *prefetch* from now on."""
        self._prefetch = prefetch

    def interrupt(self) -> None:
        """Make a waiting ``receive`` return; may be called from any thread."""
        self._interrupted.set()
        self._wakeup.notify()

    def close(self) -> None:
        """Stop consuming; unacknowledged messages go back."""
        if self._closed:
            return
        self._closed = True
        self._renewer.remove(self)
        held = self.held()
        try:
            self.release_tags(held)
        except BaseException:
            # Given back as soon as the database answers; no thread renews them any more.
            self._renewer.unreleased.add(self.queue, held)
            self._bytes.clear()
            raise

    def held(self) -> list[LeaseTag]:
        """Return unsettled leases, and leases about to be committed."""
        with self._lock:
            return [*self._held, *self._pending]

    def _lease(self, limit: int, for_good: bool = False) -> Sequence[LeasedRow]:
        limit = min(limit, self._room())
        if limit <= 0:
            return []
        rows: Sequence[LeasedRow] = []
        more, left = False, True
        with as_transport(self._database):
            # Before the query, as below.
            self._renewer.give_back()
            self._watch.before_query()
            is_check_due = time.monotonic() >= self._next_owner_check
            for front in self._fronts:
                # Before the query, so that returned messages keep their place in the order.
                left = not is_check_due or self._leases.free_dead_owners(self.queue, front)
                if left:
                    rows, more = self._found(limit, for_good, front)
                if rows:
                    break
            if is_check_due:
                self._next_owner_check = time.monotonic() + self._owner_check
        if rows:
            reach("leases.committed")
            self._watch.found(is_last=not more)
        else:
            self._watch.found_nothing(left)
        return rows

    def _found(
        self, limit: int, for_good: bool, front: FrontStatements | None
    ) -> tuple[Sequence[LeasedRow], bool]:
        """Return the first rows in the order of *front*, and whether there may be more."""
        if for_good:
            return self._leases.remove_rows(self.queue, limit, front)
        unreleased = self._renewer.unreleased
        with nullcontext() if front is None else unreleased.one_lease(self.queue, front):
            rows = self._leased_rows(limit, front)
        return rows, len(rows) == limit

    def _leased_rows(self, limit: int, front: FrontStatements | None) -> Sequence[LeasedRow]:
        try:
            # Messages that are being settled count until their transaction has ended.
            room = self._bytes.room
            rows = self._leases.lease_rows(self.queue, limit, self._note_pending, room, front)
        except BaseException:
            with self._lock:
                tags, self._pending = self._pending, []
            # The commit may have happened; if so, no receiver holds them.
            self._renewer.unreleased.add(self.queue, tags)
            raise
        with self._lock:
            for row in rows:
                tag = (row.sequence, row.delivery_count + 1)
                self._held[tag] = None
                self._bytes.add(tag, row.size)
            self._pending = []
        return rows

    def _note_pending(self, tags: list[LeaseTag]) -> None:
        with self._lock:
            self._pending = tags

    def _may_have_messages(self) -> bool:
        with as_transport(self._database):
            return self._watch.may_have_messages()

    def _room(self) -> int:
        with self._lock:
            if self._bytes.is_full:
                return 0
            if not self._prefetch:
                return LARGEST_LEASE
            return self._prefetch - len(self._held) + len(self._settling)

    def _forget_released(self, tags: list[LeaseTag]) -> None:
        self._forget(tags)
        self._wakeup.notify()

    def _forget(self, tags: list[LeaseTag]) -> None:
        with self._lock:
            for tag in tags:
                self._held.pop(tag, None)
                self._bytes.settle(tag)
                self._settling.discard(tag)


def _tags(received: Sequence[Received]) -> list[LeaseTag]:
    tags: list[LeaseTag] = []
    for one in received:
        if not isinstance(one.tag, tuple):
            raise TypeError(f"{one.tag!r} is no tag of the SQL queue; was it received elsewhere?")
        tags.append(one.tag)
    return tags
