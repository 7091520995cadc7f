"""The transport contract: access to the queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from timeoutmgr.contracts.sessions import TransportSession
from timeoutmgr.contracts.transactions import SharedDatabase, TransactionMode


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportCapabilities:
    """Promises that a transport can keep; the rows of the capability table."""

    name: str
    modes: frozenset[TransactionMode]
    durable: bool
    """Whether a delivered but unacknowledged message survives a kill of the consumer."""
    note: str = ""


class Transport(Protocol):
    """Access to queues. Opens no connection before the first session is used."""

    @property
    def capabilities(self) -> TransportCapabilities:
        """The promises that the transport can keep."""
        ...

    @property
    def database(self) -> SharedDatabase | None:
        """The SQL database whose tables the queues are, if so."""
        ...

    def describe(self) -> str:
        """Return the URL with every secret masked."""
        ...

    def install(self) -> None:
        """Create the tables of queues; twice and concurrently is fine."""
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
        """Close connections shared between sessions; closing twice is fine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSecurity:
    """Protection of the way to a broker, as a sentence; with a *remedy* if it could be better."""

    text: str
    remedy: str = ""
    is_broken: bool = False
    """Whether the way seems protected and is not: a check was turned off."""


@runtime_checkable
class HasLink(Protocol):
    """A transport that reaches its broker over a connection of its own."""

    @property
    def link_security(self) -> LinkSecurity | None:
        """Protection of that connection; None if it is not known."""
        ...
