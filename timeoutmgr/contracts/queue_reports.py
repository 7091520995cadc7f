"""Reports on existing queues: whether they keep their messages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """A broker's answers about an existing queue."""

    queue: str
    losses: tuple[str, ...] = ()
    """A sentence for each property by which the queue drops messages that it accepted."""
    doubts: tuple[str, ...] = ()
    """A sentence for each property that weakens the queue and drops nothing by itself."""
    unchecked: str = ""
    """Why the queue's own properties could not be read; empty where they were."""
    policies_unread: str = ""
    """Why the broker's policies for the queue could not be read; empty where they were."""


@runtime_checkable
class InspectsQueues(Protocol):
    """A session with a broker whose queues may have been declared by a stranger."""

    def inspect_queues(
        self, names: Collection[str], *, error_queue: str | None = None
    ) -> list[QueueReport]:
        """Report on each of *names* that exists; change and create nothing.

        With *error_queue* a queue that ``create_queues`` made is recognised at once; any other
        queue takes more questions. Raises TransportUnavailable.
        """
        ...
