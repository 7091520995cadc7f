"""A delayed message store in memory with scripted faults; it also joins a simulated transaction."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.support.ports import FakeTransaction
from timeoutmgr.contracts import Clock, Timeout, TransactionMode
from timeoutmgr.message.instants import Micros


class _Open:
    """A transaction of the store's own: locked rows, and the effects of its commit."""

    def __init__(self) -> None:
        self.on_commit: list[Callable[[], None]] = []


class SingleStore:
    """The single form only. *faults* are raised by the next calls of a method."""

    def __init__(self, clock: Clock) -> None:
        self.rows: dict[str, Timeout] = {}
        self.not_before: dict[str, Micros] = {}
        self.held: dict[str, object] = {}
        self.faults: dict[str, deque[Exception | None]] = {}
        self.after: dict[str, Callable[[], None]] = {}
        self.journal: list[str] = []
        self.initialized: list[tuple[str, TransactionMode]] = []
        self._clock = clock

    def fail(self, method: str, *errors: Exception | None) -> None:
        self.faults.setdefault(method, deque()).extend(errors)

    def initialize(self, endpoint_name: str, transaction_mode: TransactionMode) -> None:
        self.called("initialize")
        self.initialized.append((endpoint_name, transaction_mode))

    @contextmanager
    def transaction(self) -> Iterator[_Open]:
        self.called("transaction")
        open_ = _Open()
        try:
            yield open_
            self.called("commit")
        except BaseException:
            self.journal.append("rollback")
            raise
        finally:
            self._let_go(open_)
        for action in open_.on_commit:
            action()

    def store(self, timeout: Timeout, *, transaction: Any = None) -> None:
        self.called("store")
        self._later(transaction, lambda: self.put(timeout))

    def put(self, timeout: Timeout) -> None:
        if timeout.id not in self.rows:
            self.rows[timeout.id] = timeout
            self.not_before[timeout.id] = timeout.due

    def fetch_next_due_timeout(self, at: Micros, *, transaction: Any) -> Timeout | None:
        self.called("fetch")
        found = self.due(at, 1, transaction)
        return found[0] if found else None

    def due(self, at: Micros, limit: int, transaction: Any) -> list[Timeout]:
        free = [
            one
            for one in self.rows.values()
            if self.not_before[one.id] <= at and one.id not in self.held
        ]
        found = sorted(free, key=lambda one: (self.not_before[one.id], one.id))[:limit]
        for one in found:
            self.held[one.id] = transaction
        if isinstance(transaction, FakeTransaction):
            transaction.on_commit.append(lambda: self._let_go(transaction))
        return found

    def remove(self, timeout: Timeout, *, transaction: Any = None) -> bool:
        self.called("remove")
        there = timeout.id in self.rows
        self._later(transaction, lambda: self.drop(timeout.id))
        return there

    def drop(self, timeout_id: str) -> None:
        self.rows.pop(timeout_id, None)

    def increment_failure_count(self, timeout: Timeout, not_before: Micros) -> bool:
        self.called("increment")
        row = self.rows.get(timeout.id)
        holder = self.held.get(timeout.id)
        # A transaction of the queue's has ended by then, and does not say so here if undone.
        if row is None or (holder is not None and not isinstance(holder, FakeTransaction)):
            return False
        self.rows[timeout.id] = replace(row, attempts=row.attempts + 1)
        self.not_before[timeout.id] = not_before
        return True

    def next(self) -> Micros | None:
        self.called("next")
        return min((self.not_before[one] for one in self.rows), default=None)

    def called(self, method: str) -> None:
        self.journal.append(method)
        self.after.get(method, lambda: None)()
        faults = self.faults.get(method)
        if faults:
            fault = faults.popleft()
            if fault is not None:
                raise fault

    def free(self) -> None:
        """Give all back that is in hand, as a rolled back transaction of the queue's does."""
        self.held.clear()

    def _let_go(self, transaction: object) -> None:
        self.held = {one: by for one, by in self.held.items() if by is not transaction}

    @staticmethod
    def _later(transaction: Any, action: Callable[[], None]) -> None:
        if transaction is None:
            action()
        else:
            transaction.on_commit.append(action)


class BatchStore(SingleStore):
    """The batch forms too."""

    def store_many(self, timeouts: Sequence[Timeout], *, transaction: Any = None) -> None:
        for one in timeouts:
            self.store(one, transaction=transaction)

    def fetch_due(self, at: Micros, limit: int, *, transaction: Any) -> list[Timeout]:
        self.called("fetch")
        return self.due(at, limit, transaction)

    def remove_many(self, timeouts: Sequence[Timeout], *, transaction: Any = None) -> int:
        self.called("remove")
        there = [one for one in timeouts if one.id in self.rows]
        for one in there:
            self._later(transaction, self._dropping(one.id))
        return len(there)

    def _dropping(self, timeout_id: str) -> Callable[[], None]:
        return lambda: self.drop(timeout_id)
