"""Exchanges, queues and bindings of a broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from timeoutmgr.contracts.sessions import TransportSession


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange."""

    name: str
    kind: str = "topic"
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue; *arguments* None takes it as it is, or creates it as any other of ours."""

    name: str
    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a queue, or with *to_exchange* to another exchange."""

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
        """Return both topologies as a single topology, this topology first."""
        return Topology(
            self.exchanges + other.exchanges,
            self.queues + other.queues,
            self.bindings + other.bindings,
        )


class TopologySession(TransportSession, Protocol):
    """A session with a broker that has exchanges."""

    @property
    def server_version(self) -> tuple[int, ...]:
        """The broker's version; empty when it is no RabbitMQ."""
        ...

    def declare(self, topology: Topology) -> None:
        """Declare all of *topology*; twice and concurrently is fine.

        Raises TopologyMismatch where something of that name has other arguments, and
        ConfigurationError where the broker's user may not declare.
        """
        ...

    def missing(self, topology: Topology) -> list[str]:
        """Return the exchanges and queues of *topology* that do not exist; bindings go unseen."""
        ...

    def remove(self, topology: Topology) -> None:
        """Delete the exchanges and queues of *topology* with their messages; missing is fine."""
        ...

    def is_routed(self, exchange: str, key: str) -> bool:
        """Return whether *exchange* knows a queue for *key*.

        A probe finds out: an empty message with the header PROBE, which lives a second.
        """
        ...

    def bind_queues(
        self, queues: Collection[str], exchange: str, key_of: Callable[[str], str]
    ) -> list[str]:
        """Bind each of *queues* to *exchange*; return the queues that do not exist.

        Raises QueueMissing where the exchange does not exist.
        """
        ...
