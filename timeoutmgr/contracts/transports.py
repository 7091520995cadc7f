"""The transport contract: access to the queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from timeoutmgr.contracts.sessions import TransportSession
from timeoutmgr.contracts.transactions import SharedDatabase, Transaction, TransactionMode
from timeoutmgr.message.message import Received

# --- exchanges, queues and bindings of a broker -----------------------------------------------


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange."""

    name: str
    kind: str = "topic"
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue; *arguments* None accepts an existing queue, or creates it as usual."""

    name: str
    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding of a queue, or with *to_exchange* of another exchange, to an exchange."""

    source: str
    target: str
    key: str
    to_exchange: bool = False


@dataclass(frozen=True, slots=True)
class Topology:
    """Exchanges, queues and bindings that belong together, in the order of their declaration."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()

    def __add__(self, other: Topology) -> Topology:
        """Return a topology of both, this topology first."""
        return Topology(
            self.exchanges + other.exchanges,
            self.queues + other.queues,
            self.bindings + other.bindings,
        )


class TopologySession(TransportSession, Protocol):
    """A session with a broker that has exchanges."""

    @property
    def server_version(self) -> tuple[int, ...]:
        """The broker's version; empty if the broker is not RabbitMQ."""
        ...

    def declare(self, topology: Topology) -> None:
        """Declare all of *topology*; idempotent and safe to run concurrently.

        Raises TopologyMismatch if an exchange or queue exists with other arguments, and
        ConfigurationError if the user may not declare, or the broker refuses an argument.
        """
        ...

    def missing(self, topology: Topology) -> list[str]:
        """Return the exchanges and queues of *topology* that do not exist; bindings go unseen."""
        ...

    def remove(self, topology: Topology) -> None:
        """Delete the exchanges and queues of *topology* with their messages; missing is fine."""
        ...

    def is_routed(self, exchange: str, key: str, rest: str) -> bool:
        """Return whether *exchange* has a route to a queue for *key*.

        A probe tests this: an empty message with the header PROBE, removed again from the queue
        *rest*.
        """
        ...

    def bind_queues(
        self, queues: Collection[str], exchange: str, key_of: Callable[[str], str]
    ) -> list[str]:
        """Bind each of *queues* to *exchange*; return the queues that do not exist.

        Raises QueueMissing if the exchange does not exist.
        """
        ...


@runtime_checkable
class FollowsTopology(Protocol):
    """A transport that shares a broker with NServiceBus' conventional topology."""

    def follow_conventional_topology(self) -> None:
        """Address queues by exchanges of their names too, unless the settings say otherwise."""
        ...


@runtime_checkable
class InspectsExchanges(Protocol):
    """A session with a broker on which other programs may address queues by exchanges."""

    def missing_exchanges(self, queues: Collection[str]) -> list[str] | None:
        """Return the *queues* that need an exchange of their name, but have none.

        None if the transport uses only queues. Raises TransportUnavailable.
        """
        ...


# --- reports on existing queues: whether they keep their messages -----------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """A broker's answers about an existing queue."""

    queue: str
    losses: tuple[str, ...] = ()
    """A sentence for each property by which the queue drops messages that it accepted."""
    doubts: tuple[str, ...] = ()
    """A sentence for each property that weakens the queue and drops nothing by itself."""
    refusals: tuple[str, ...] = ()
    """A sentence for each limit at which the queue refuses further messages."""
    unchecked: str = ""
    """Why the queue's own properties could not be read; empty if they were read."""
    policies_unread: str = ""
    """Why the broker's policies for the queue could not be read; empty if they were read."""


@runtime_checkable
class InspectsQueues(Protocol):
    """A session with a broker whose queues other programs may have declared."""

    def inspect_queues(
        self, names: Collection[str], *, error_queue: str | None = None, policies: bool = True
    ) -> list[QueueReport]:
        """Report on each of *names* that exists; change and create nothing.

        With *error_queue* a queue that ``create_queues`` made is recognised at once; any other
        queue takes more requests. Without *policies* no request is made that may take seconds.
        *names* may map each queue to its expected arguments: then only a difference counts as a
        loss. Raises TransportUnavailable.
        """
        ...


@runtime_checkable
class TellsDeadMessages(Protocol):
    """A session with a broker that may send a queue's dead messages to another queue."""

    def dead_messages_to(self, queue: str) -> str | None:
        """Return the queue that gets the dead messages of *queue*, None if unknown.

        Raises TransportUnavailable.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportCapabilities:
    """Promises that a transport can keep; the rows of the capability table."""

    name: str
    modes: frozenset[TransactionMode]
    durable: bool
    """Whether a delivered but unacknowledged message survives a kill of the consumer."""
    forgets_markers: bool = False
    """Whether a restart of the broker may lose an endpoint's marker on it."""
    note: str = ""


class Transport(Protocol):
    """Access to queues. Opens no connection before the first session is used."""

    @property
    def capabilities(self) -> TransportCapabilities:
        """The promises that the transport can keep."""
        ...

    @property
    def database(self) -> SharedDatabase | None:
        """The SQL database, if the queues are tables in it."""
        ...

    def describe(self) -> str:
        """Return the URL with every secret masked."""
        ...

    def install(self) -> None:
        """Create the tables of queues; idempotent and safe to run concurrently."""
        ...

    def ddl(self) -> str:
        """Return the statements that ``install`` would run, or an empty text."""
        ...

    def check(self) -> None:
        """Raise SchemaMissing, with the command to run, if ``install`` is needed."""
        ...

    def session(self) -> TransportSession:
        """Return a new session; it connects on first use."""
        ...

    def close(self) -> None:
        """Close connections shared between sessions; idempotent."""
        ...


SettleExpired: TypeAlias = Callable[[Sequence[Received], Transaction], None]
"""Settles messages in the transaction that deletes them; an error keeps them in their queues."""


@runtime_checkable
class ExpiresMessages(Protocol):
    """A transport that knows which messages are older than their ``time_to_live``."""

    def remove_expired(self, limit: int, settle: SettleExpired) -> int:
        """Settle and delete up to *limit* expired messages of all queues; return how many.

        This is a transaction, which may be repeated. It skips messages that a consumer has
        received, or that a concurrent call has. 0 means that none are left. Raises
        TransportUnavailable.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSecurity:
    """Protection of the connection to a broker, as a sentence; a *remedy* if it could be better."""

    text: str
    remedy: str = ""
    is_broken: bool = False
    """Whether it only seems protected, because a check was turned off."""


@runtime_checkable
class HasLink(Protocol):
    """A transport that reaches its broker over a connection of its own."""

    @property
    def link_security(self) -> LinkSecurity | None:
        """Protection of that connection; None if it is not known."""
        ...
