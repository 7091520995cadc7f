"""The options that select dead letters or journal entries, and the queue that holds them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Final

import click

from timeoutmgr.cli.options import Duration, bundled, check_text, option
from timeoutmgr.cli.shared import Shared, assembled, require_installed
from timeoutmgr.errors import ConfigurationError, InvalidMessage

if TYPE_CHECKING:
    from timeoutmgr.deadletter.queues import StoredCopyFilter, StoredCopyGroup, StoredCopyQueue
    from timeoutmgr.deadletter.service import DeadLetterService
    from timeoutmgr.deadletter.stored_copy import StoredCopy
    from timeoutmgr.endpoint.assembly import AssembledEndpoint

NARROWING: Final = "--id, --class, --reason, --type, --destination, --older-than"
"""Options of a command that changes copies; each narrows the selection."""


@dataclass(frozen=True, slots=True)
class OpenQueue:
    """The endpoint's parts, its dead-letter service, and the queue that the options name."""

    parts: "AssembledEndpoint"
    service: "DeadLetterService"
    queue: "StoredCopyQueue"


@dataclass(frozen=True, kw_only=True)
class CopySelection:
    """The options that select stored copies: a queue, and filters on its copies."""

    journal: ClassVar[bool] = False
    """Whether the queue is a journal."""

    queue_name: str = "deadletter"
    message_class: str | None = None
    reason: str | None = None
    message_type: str | None = None
    destination: str | None = None
    older_than: timedelta | None = None
    newer_than: timedelta | None = None
    ids: tuple[str, ...] = ()

    @property
    def is_narrowed(self) -> bool:
        """Whether any filter was given."""
        return self != type(self)(queue_name=self.queue_name)

    def filters(self, queue: "StoredCopyQueue") -> "list[StoredCopyFilter]":
        """Return the filters for *queue*: one for each distinct id, or a single filter."""
        from timeoutmgr.deadletter.addresses import destination
        from timeoutmgr.deadletter.queues import StoredCopyFilter
        from timeoutmgr.deadletter.stored_copy import class_number
        from timeoutmgr.message.instants import duration_micros, to_micros

        now, number, wanted = to_micros(datetime.now(UTC)), self.message_class, self.destination
        # An age may reach back before the year 1, unlike a datetime.
        older, newer = (
            None if age is None else now - duration_micros(age)
            for age in (self.older_than, self.newer_than)
        )
        if wanted is not None:
            wanted = destination(wanted, queue.manager.node, queue.manager.store.nodes)
        return [
            StoredCopyFilter(
                message_id=each,
                destination=wanted,
                message_class=None if number is None else class_number(number),
                reason=self.reason,
                kept_before=older,
                kept_from=newer,
            )
            for each in dict.fromkeys(self.ids) or (None,)
        ]

    def copies(self, queue: "StoredCopyQueue", limit: int | None) -> "Iterator[StoredCopy]":
        """Yield the selected copies, oldest first, with one page in memory.

        Copies that arrive meanwhile are left out: a message that fails again is not yielded twice.
        """
        found = 0
        for which in self.filters(queue):
            newest = queue.newest(which)
            if newest is None:
                continue
            for copy in queue.every(replace(which, kept_before=newest + 1)):
                if not self._is_of_type(copy):
                    continue
                if limit is not None and found >= limit:
                    return
                found += 1
                yield copy

    def groups(self, queue: "StoredCopyQueue") -> "list[StoredCopyGroup]":
        """Return the groups of the selected copies by message class and reason."""
        from timeoutmgr.deadletter.queues import StoredCopyGroup

        if self.message_type is None:
            return [group for which in self.filters(queue) for group in queue.groups(which)]
        kept: dict[tuple[int, str], list[int]] = {}
        for copy in self.copies(queue, None):
            kept.setdefault((copy.message_class, copy.reason), []).append(copy.kept)
        return [
            StoredCopyGroup(
                message_class=number,
                reason=reason,
                count=len(times),
                oldest=min(times),
                newest=max(times),
            )
            for (number, reason), times in sorted(kept.items(), key=lambda one: -len(one[1]))
        ]

    def _is_of_type(self, copy: "StoredCopy") -> bool:
        from timeoutmgr.message.message import enclosed_types

        return self.message_type is None or self.message_type in enclosed_types(copy.message)

    def count(self, queue: "StoredCopyQueue") -> int:
        """Return the number of selected copies, of any type."""
        return sum(queue.count(which) for which in self.filters(queue))


@dataclass(frozen=True, kw_only=True)
class JournalEntrySelection(CopySelection):
    """The options that select journal entries."""

    journal: ClassVar[bool] = True
    queue_name: str = ""


dead_letter_queue: Final = option(
    "--queue",
    "queue_name",
    metavar="NAME",
    help="deadletter, deadxact, an application's own dead-letter queue, or a format name such as "
    r"DIRECT=OS:host\SYSTEM$;DEADXACT.",
    default=CopySelection.queue_name,
)
journal_queue: Final = option(
    "--queue",
    "queue_name",
    metavar="NAME",
    help="Queue whose journal to read. Without it, the node's own journal.",
    default=JournalEntrySelection.queue_name,
)
_FILTERS: Final = (
    option("--class", "message_class", help="Message class: NACK_BAD_DST_Q, or 0x8000."),
    option("--reason", callback=check_text, help="Part of the reason, in upper or lower case."),
    option("--type", "message_type", help="Message type."),
    option("--destination", help="Queue that the message was sent to."),
    option("--older-than", type=Duration(), help="Minimum age of the copy: 7d."),
    option("--newer-than", type=Duration(), help="Maximum age of the copy: 2h."),
    option("--id", "ids", multiple=True, help="Message id; may be given many times."),
)
selects_dead_letters: Final = bundled("selection", CopySelection, dead_letter_queue, *_FILTERS)
"""Add the options that select dead letters; the command gets them as ``selection``."""
selects_entries: Final = bundled("selection", JournalEntrySelection, journal_queue, *_FILTERS)
"""Add the options that select journal entries; the command gets them as ``selection``."""


@contextmanager
def opened_queue(shared: Shared, selection: CopySelection) -> Iterator[OpenQueue]:
    """Check the tables, then yield the selected queue of the endpoint's node."""
    from timeoutmgr.deadletter.service import DeadLetterService

    with assembled(shared) as parts:
        service = parts.features.dead_letters
        if not isinstance(service, DeadLetterService):
            raise ConfigurationError(
                f"endpoint {parts.settings.name!r} has no dead-letter queues; enable the feature "
                "'dead-letter-queues', with its node"
            )
        require_installed(service.manager.store)
        yield OpenQueue(parts, service, _queue(service, selection.queue_name, selection.journal))


@contextmanager
def progress_of(shared: Shared, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield the function to call for each message; on a terminal, it draws a progress bar."""
    if shared.json or total < 2 or not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=total, label=what, file=sys.stderr) as progress:
        yield lambda: progress.update(1)


def _queue(service: "DeadLetterService", name: str, journal: bool) -> "StoredCopyQueue":
    from timeoutmgr.deadletter.addresses import NodeQueueAddress, resolve
    from timeoutmgr.deadletter.queues import StoredCopyQueue
    from timeoutmgr.deadletter.stored_copy import NodeQueue

    manager = service.manager
    if not journal and name in (NodeQueue.DEADLETTER, NodeQueue.DEADXACT):
        return StoredCopyQueue(manager, NodeQueue(name))
    if journal and not name:
        return StoredCopyQueue(manager, NodeQueue.JOURNAL)
    found = resolve(name, manager.node, manager.store.nodes)
    if not isinstance(found, NodeQueueAddress):
        return StoredCopyQueue(
            manager, NodeQueue.JOURNAL if journal else NodeQueue.DEADXACT, found.queue
        )
    if (found.kind is NodeQueue.JOURNAL) is not journal:
        raise InvalidMessage(
            f"{name!r} is {'no' if journal else 'a'} journal; use `timeoutmgr "
            f"{'deadletters' if journal else 'journal'}` for it"
        )
    return StoredCopyQueue(replace(manager, node=found.node), found.kind, found.queue)
