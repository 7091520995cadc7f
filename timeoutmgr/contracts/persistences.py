"""The persistence contract: a place for the stores of endpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from timeoutmgr.clock import Clock
from timeoutmgr.contracts.reports import EndpointReport
from timeoutmgr.contracts.stores import CancelResult, TimeoutStore
from timeoutmgr.contracts.transactions import SharedDatabase, Transaction
from timeoutmgr.message.instants import Micros

# --- the history of a timeout: its events, each with its channel ----------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """An event of the timeout *id*.

    *node* is the host that wrote it. *channel* is the origin of a cancel (see
    :mod:`timeoutmgr.message.routes`); None for other events, and for events of earlier versions.
    """

    id: str
    event: str
    at: Micros
    due: Micros
    destination: str
    attempt: int
    node: str | None
    channel: str | None = None


RaiseCriticalError: TypeAlias = Callable[[str, BaseException], None]
"""Reports a text and its cause to the critical error hooks, and returns at once."""


@runtime_checkable
class RaisesCriticalErrors(Protocol):
    """A timeout store or delayed message store that reports errors which no retry can repair."""

    def use_critical_errors(self, raise_error: RaiseCriticalError) -> None:
        """Keep *raise_error*; called once, before the store is used.

        By default a reported error stops the endpoint. An error that is reported before the
        endpoint runs reaches the hooks when the endpoint runs.
        """
        ...


@runtime_checkable
class KeepsHistory(TimeoutStore, Protocol):
    """A store with a history, which records the channel of a cancel; no store needs a history."""

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
    ) -> Sequence[str]:
        """Cancel the timeouts of a saga, as any store does; the history names *channel*."""
        ...


# --- markers: a random word in a broker and in a store, by which an endpoint knows its own pair ---
# Names of hosts and aliases change, and two brokers may have one name; a marker stays.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMarker:
    """The marker beside an endpoint in its store."""

    word: str
    broker: str
    """Description of the broker that was marked, for people."""
    confirmed: bool
    """Whether the broker is known to bear the marker."""


@runtime_checkable
class KeepsMarkers(Protocol):
    """A persistence that remembers which broker belongs to an endpoint; no persistence needs to."""

    def marker(self, endpoint: str) -> StoreMarker | None:
        """Return the marker of *endpoint*, or None."""
        ...

    def propose_marker(self, endpoint: str, word: str, broker: str) -> StoreMarker:
        """Store *word*, unconfirmed, unless a marker is stored; return the stored marker.

        If several processes do so at once, exactly one succeeds.
        """
        ...

    def confirm_marker(self, endpoint: str, word: str, broker: str) -> None:
        """Store *word* as the marker that *broker* bears, in place of any other."""
        ...


@runtime_checkable
class BearsMarkers(Protocol):
    """A session with a broker that can store markers. Every method raises TransportUnavailable."""

    def borne_marker(self, endpoint: str, expected: str | None) -> str | None:
        """Return the marker of *endpoint* that the broker bears, None if it bears none.

        To recognise *expected* takes fewer permissions than to read any other marker.
        """
        ...

    def bear_marker(self, endpoint: str, word: str, store: str) -> None:
        """Store *word* on the broker for *endpoint*, in place of any other; idempotent.

        *store* describes the store, for people. Raises ConfigurationError without the permission.
        """
        ...

    def drop_marker(self, endpoint: str, expected: str | None) -> None:
        """Remove the marker of *endpoint*, if it exists."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCapabilities:
    """Promises that a persistence can keep; the rows of the capability table."""

    name: str
    durable: bool
    row_locks: bool
    """Whether row locks span the publish. Without, a pause > the lease may cause a repeat."""
    note: str = ""


class Persistence(Protocol):
    """Storage of timeouts, chosen in config; it makes one store per endpoint."""

    @property
    def capabilities(self) -> StoreCapabilities:
        """The promises that the persistence can keep."""
        ...

    @property
    def database(self) -> SharedDatabase | None:
        """Its SQL database, if any: a SQL queue must share it for a common transaction."""
        ...

    def install(self) -> None:
        """Create or upgrade the tables; idempotent and safe to run concurrently."""
        ...

    def ddl(self) -> str:
        """Return the statements that ``install`` would run on an empty database."""
        ...

    def check(self) -> None:
        """Raise SchemaMissing, with the command to run, if ``install`` is needed."""
        ...

    def timeouts(
        self, endpoint: str, clock: Clock, *, atomic_dispatch: bool = False
    ) -> TimeoutStore:
        """Return the timeout store of *endpoint*.

        *atomic_dispatch* means that timeouts are sent in the transaction that closes them: a
        timeout that is not closed was not sent, and nothing is ever "maybe sent".
        """
        ...

    def close(self) -> None:
        """Close connections; closing twice is fine."""
        ...


@runtime_checkable
class KeepsTimeouts(Protocol):
    """A persistence that stores timeouts: a plugin may store only other things."""

    def timeouts(
        self, endpoint: str, clock: Clock, *, atomic_dispatch: bool = False
    ) -> TimeoutStore:
        """Return the timeout store of *endpoint*, see Persistence."""
        ...


@runtime_checkable
class CanUninstall(Protocol):
    """A persistence that can remove an endpoint; no persistence needs to."""

    def uninstall(self, endpoint: str, *, force: bool = False) -> bool:
        """Remove all data of *endpoint*; return whether the tables of ``install`` were removed too.

        The tables stay while they hold other endpoints. Raises FeatureRefused while timeouts of the
        endpoint are pending, unless *force* gives them up.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout of the tables, as a sentence; with a *remedy* if it could be better."""

    text: str
    remedy: str = ""


@runtime_checkable
class HasLayout(Protocol):
    """A persistence whose tables may be laid out in several ways; no persistence needs to."""

    def layout(self) -> Layout | None:
        """Return the layout; None if there is no choice of layouts, or if nothing is installed."""
        ...


@runtime_checkable
class ReportsEndpoints(Protocol):
    """A persistence that lists all endpoints whose timeouts it stores; none needs to."""

    def endpoints(self) -> Sequence[EndpointReport]:
        """Return the endpoints that have pending timeouts here, by name.

        The work grows with the number of endpoints, not with the number of timeouts.
        """
        ...
