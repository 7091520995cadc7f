"""What the commands on dead letters and journals share: which queue, which letters, how shown."""

import base64
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Duration, option
from timeoutmgr.cli.shared import Shared, assembled
from timeoutmgr.errors import ConfigurationError, InvalidMessage, SchemaMissing

if TYPE_CHECKING:
    from timeoutmgr.assembly import Parts
    from timeoutmgr.deadletter.desk import DeadLetterDesk
    from timeoutmgr.deadletter.letters import Letter
    from timeoutmgr.deadletter.queues import LetterFilter, LetterQueue

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Opened:
    """The endpoint's parts, its desk, and the queue that was asked for."""

    parts: "Parts"
    desk: "DeadLetterDesk"
    queue: "LetterQueue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The options that say which letters."""

    ids: tuple[str, ...] = ()
    message_class: str | None = None
    destination: str | None = None
    older: timedelta | None = None
    newer: timedelta | None = None

    @property
    def says_something(self) -> bool:
        """Whether any option was given."""
        return any((self.ids, self.message_class, self.destination, self.older, self.newer))

    def filters(self, queue: "LetterQueue") -> "list[LetterFilter]":
        """Return what they choose of *queue*; letters of several ids are asked for one by one."""
        from timeoutmgr.deadletter.addressing import destination
        from timeoutmgr.deadletter.queues import LetterFilter
        from timeoutmgr.instants import to_micros

        now, wanted = datetime.now(UTC), self.destination
        if wanted is not None:
            wanted = destination(wanted, queue.manager.node, queue.manager.store.nodes)
        return [
            LetterFilter(
                message_id=one,
                destination=wanted,
                message_class=_class(self.message_class),
                kept_before=None if self.older is None else to_micros(now - self.older),
                kept_from=None if self.newer is None else to_micros(now - self.newer),
            )
            for one in self.ids or (None,)
        ]

    def letters(self, queue: "LetterQueue", limit: int | None) -> "Iterator[Letter]":
        """Yield the letters that are there now, the oldest first, a page of them in memory.

        What comes meanwhile is for the next time, so that what fails again is not met again.
        """
        found = 0
        for which in self.filters(queue):
            newest = queue.newest(which)
            if newest is None:
                continue
            for letter in queue.every(replace(which, kept_before=newest + 1)):
                if limit is not None and found >= limit:
                    return
                found += 1
                yield letter

    def count(self, queue: "LetterQueue") -> int:
        """Return how many there are."""
        return sum(queue.count(which) for which in self.filters(queue))


def choosing(function: Decorated) -> Decorated:
    """Add the options that say which letters."""
    for add in (
        option("--newer-than", type=Duration(), help="Only those of the last so long: 2h."),
        option("--older-than", type=Duration(), help="Only those that lie here so long: 7d."),
        option("--destination", help="Only those for this queue."),
        option("--class", "message_class", help="Only this class: NACK_BAD_DST_Q, or 0x8000."),
    ):
        function = add(function)
    return function


def in_queue(function: Decorated) -> Decorated:
    """Add the option that says which queue."""
    return option(
        "--queue",
        "queue_name",
        metavar="NAME",
        help="deadletter, deadxact, an application's own dead-letter queue, or a format name such "
        r"as DIRECT=OS:host\SYSTEM$;DEADXACT.",
        default="deadletter",
        show_default=True,
    )(function)


@contextmanager
def opened_letters(shared: Shared, name: str, *, journal: bool = False) -> Iterator[Opened]:
    """Lend the queue *name* of the endpoint's node; its tables are there."""
    from timeoutmgr.deadletter.desk import DeadLetterDesk

    with assembled(shared) as parts:
        desk = parts.context.dead_letters
        if not isinstance(desk, DeadLetterDesk):
            raise ConfigurationError(
                f"endpoint {parts.settings.name!r} has no dead-letter queues; enable the feature "
                "'dead-letter-queues', with its node"
            )
        store = desk.manager.store
        path = store.database.path
        if path is not None and not path.exists():
            raise SchemaMissing(f"there is no file {path}; run `timeoutmgr install`")
        store.check()
        yield Opened(parts, desk, _queue(desk, name, journal))


def letter_document(letter: "Letter", *, whole: bool = False) -> dict[str, Any]:
    """Return *letter* for JSON; *whole* with headers and body."""
    from timeoutmgr.instants import from_micros

    document: dict[str, Any] = {
        "message_id": letter.message.id,
        "class": letter.class_name,
        "class_number": f"{letter.message_class:#06x}",
        "destination": letter.destination,
        "source": letter.source or None,
        "since": from_micros(letter.kept).isoformat(),
        "sent": output.shown_time(letter.sent),
        "transactional": letter.transactional,
        "received_late": letter.late,
        "attempts": letter.attempts,
        "hops": letter.hops,
        "reason": letter.reason,
        "bytes": len(letter.message.body),
    }
    if whole:
        document |= {
            "content_type": letter.message.content_type,
            "headers": dict(letter.message.headers),
            "body_base64": base64.b64encode(letter.message.body).decode(),
        }
    return document


def print_letters(letters: "list[Letter]") -> None:
    """Print one line a letter."""
    output.print_table(
        ["message id", "class", "destination", "since", "attempts", "bytes", "reason"],
        [
            (
                letter.message.id,
                letter.class_name,
                letter.destination,
                output.shown_time(letter.kept),
                letter.attempts,
                len(letter.message.body),
                letter.reason.partition("\n")[0][:80],
            )
            for letter in letters
        ],
        drop=("bytes", "attempts", "since", "destination", "reason"),
    )


@contextmanager
def progress_of(shared: Shared, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Lend what is called after each one; a bar on a terminal, nothing elsewhere."""
    if shared.json or total < 2 or not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=total, label=what, file=sys.stderr) as progress:
        yield lambda: progress.update(1)


def _queue(desk: "DeadLetterDesk", name: str, journal: bool) -> "LetterQueue":
    from timeoutmgr.deadletter.addressing import BoxAddress, resolve
    from timeoutmgr.deadletter.letters import Box
    from timeoutmgr.deadletter.queues import LetterQueue

    manager = desk.manager
    if not journal and name in (Box.DEADLETTER, Box.DEADXACT):
        return LetterQueue(manager, Box(name))
    if journal and not name:
        return LetterQueue(manager, Box.JOURNAL)
    found = resolve(name, manager.node, manager.store.nodes)
    if not isinstance(found, BoxAddress):
        return LetterQueue(manager, Box.JOURNAL if journal else Box.DEADXACT, found.queue)
    if (found.box is Box.JOURNAL) is not journal:
        raise InvalidMessage(
            f"{name!r} is {'no' if journal else 'a'} journal; use `timeoutmgr "
            f"{'deadletters' if journal else 'journal'}` for it"
        )
    return LetterQueue(replace(manager, node=found.node), found.box, found.queue)


def _class(text: str | None) -> int | None:
    from timeoutmgr.deadletter.classes import MessageClass

    if text is None:
        return None
    try:
        return MessageClass[text.upper()].value
    except KeyError:
        pass
    try:
        return int(text, 0)
    except ValueError:
        known = ", ".join(each.name for each in MessageClass if each.is_negative)
        raise InvalidMessage(
            f"{text!r} is no message class; expected a number such as 0x8000, or one of {known}"
        ) from None
