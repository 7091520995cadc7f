"""The history of a timeout: its events, each with the channel of its order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from timeoutmgr.contracts.outcomes import CancelResult
from timeoutmgr.contracts.stores import TimeoutStore
from timeoutmgr.contracts.transactions import Transaction
from timeoutmgr.message.instants import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """An event of the timeout *id*.

    *node* is the host that wrote it. *channel* is the way by which an order to cancel came (see
    :mod:`timeoutmgr.message.channels`); None for other events, and for events of earlier versions.
    """

    id: str
    event: str
    at: Micros
    due: Micros
    destination: str
    attempt: int
    node: str | None
    channel: str | None = None


@runtime_checkable
class KeepsHistory(TimeoutStore, Protocol):
    """A store with a history, which names the channel of a cancel; no store needs a history."""

    def history(self, timeout_id: str, *, limit: int = 100) -> Sequence[HistoryEntry]:
        """Return the newest *limit* events of *timeout_id*, oldest first."""
        ...

    def cancel(self, timeout_id: str, *, channel: str | None = None) -> CancelResult:
        """Cancel a timeout, as any store does; the history names *channel*."""
        ...

    def cancel_saga(
        self,
        saga_id: str,
        *,
        sent_until: Micros | None = None,
        keeping: Collection[str] = (),
        transaction: Transaction | None = None,
        channel: str | None = None,
    ) -> int:
        """Cancel the timeouts of a saga, as any store does; the history names *channel*."""
        ...
