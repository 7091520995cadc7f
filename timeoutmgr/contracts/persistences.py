"""The persistence contract: a place for the stores of endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from timeoutmgr.contracts.clocks import Clock
from timeoutmgr.contracts.reports import EndpointReport
from timeoutmgr.contracts.stores import TimeoutStore
from timeoutmgr.contracts.transactions import SharedDatabase


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCapabilities:
    """Promises that a persistence can keep; the rows of the capability table."""

    name: str
    durable: bool
    row_locks: bool
    """A dispatcher holds a lock over the publish. Without, a repeat needs a pause > the lease."""
    note: str = ""


class Persistence(Protocol):
    """A place for timeouts, chosen in config; makes one store per endpoint."""

    @property
    def capabilities(self) -> StoreCapabilities:
        """The promises that the persistence can keep."""
        ...

    @property
    def database(self) -> SharedDatabase | None:
        """Its SQL database, if any: a SQL queue must share it for a common transaction."""
        ...

    def install(self) -> None:
        """Create or upgrade the tables; twice and concurrently is fine."""
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
        an open timeout was then not sent, and nothing is ever "maybe sent".
        """
        ...

    def close(self) -> None:
        """Close connections; closing twice is fine."""
        ...


@runtime_checkable
class KeepsTimeouts(Protocol):
    """A persistence that keeps timeouts: a plugin may keep other things alone."""

    def timeouts(
        self, endpoint: str, clock: Clock, *, atomic_dispatch: bool = False
    ) -> TimeoutStore:
        """Return the timeout store of *endpoint*, see Persistence."""
        ...


@runtime_checkable
class CanUninstall(Protocol):
    """A persistence that can remove an endpoint; no persistence needs to."""

    def uninstall(self, endpoint: str, *, force: bool = False) -> bool:
        """Remove all of *endpoint*; return whether the tables of ``install`` are gone too.

        That stays while it holds other endpoints. Raises FeatureRefused while timeouts of the
        endpoint are pending, unless *force* gives them up.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the tables are laid out, as a sentence; with a *remedy* where it could be better."""

    text: str
    remedy: str = ""


@runtime_checkable
class HasLayout(Protocol):
    """A persistence whose tables may be laid out in several ways; no persistence needs to."""

    def layout(self) -> Layout | None:
        """Return the layout; None without a choice of layouts, or if nothing is installed."""
        ...


@runtime_checkable
class ReportsEndpoints(Protocol):
    """A persistence that knows all endpoints with timeouts in it; no persistence needs to."""

    def endpoints(self) -> Sequence[EndpointReport]:
        """Return the endpoints that have pending timeouts here, by name.

        The work grows with the number of endpoints, not with the number of timeouts.
        """
        ...
