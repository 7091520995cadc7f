"""Markers: a random word in a broker and in a store, by which an endpoint knows its own pair.

Names of hosts and aliases change, and two brokers may have one name; a marker stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


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
        """Return the marker of *endpoint*, None if it has none."""
        ...

    def propose_marker(self, endpoint: str, word: str, broker: str) -> StoreMarker:
        """Keep *word*, unconfirmed, unless a marker is kept; return the marker that is kept then.

        Of several processes at once exactly one succeeds.
        """
        ...

    def confirm_marker(self, endpoint: str, word: str, broker: str) -> None:
        """Keep *word* as the marker that *broker* bears, in place of any other."""
        ...


@runtime_checkable
class BearsMarkers(Protocol):
    """A session with a broker that can bear markers. Every method raises TransportUnavailable."""

    def borne_marker(self, endpoint: str, expected: str | None) -> str | None:
        """Return the marker of *endpoint* that the broker bears, None if it bears none.

        *expected* is recognised with fewer rights than any other.
        """
        ...

    def bear_marker(self, endpoint: str, word: str, store: str) -> None:
        """Have the broker bear *word* for *endpoint* in place of any other; twice is fine.

        *store* describes the store, for people. Raises ConfigurationError without the right.
        """
        ...

    def drop_marker(self, endpoint: str, expected: str | None) -> None:
        """Remove the marker of *endpoint*; a missing marker is fine."""
        ...
