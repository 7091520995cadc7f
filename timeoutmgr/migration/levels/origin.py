"""Delay levels as the origin of a migration: parts of a second, then 28 levels, the longest first.

A message waits for its part of a second, and then falls from a level into shorter levels. A drain
in that order meets each message once, or not at all because it was delivered meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

from timeoutmgr.contracts import Clock, Key
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros
from timeoutmgr.migration.runs import Batch, KeyRange, Problem, Survey
from timeoutmgr.migration.window import Window
from timeoutmgr.native.names import NameSet
from timeoutmgr.transport.amqp.relay import Relay
from timeoutmgr.transport.kombu_transport import KombuTransport

MOST_HELD: Final = 60_000
"""Messages of other senders that a drain passes over in a level; AMQP counts them in 16 bits."""


@dataclass(frozen=True, slots=True)
class LevelsOrigin:
    """The levels called *names* on the broker of *transport*.

    A broker does not tell its time: *clock* is that of the store that keeps the ledger.

    Levels belong to all programs on a broker. With *sender* None all messages are moved, with
    a name the messages that this endpoint sent. *renames* has destinations by their old names.
    """

    transport: KombuTransport
    names: NameSet
    clock: Clock
    sender: str | None = None
    renames: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """Return the broker and the names, without secrets."""
        of = "" if self.sender is None else f" sent by {self.sender}"
        return f"{self.transport.describe()} {self.names.name}{of}"

    def now(self) -> Micros:
        """Return the time of *clock*."""
        return self.clock.now()

    def survey(self, window: Window) -> Survey:
        """Count the messages in the levels; their senders and due times are not known yet."""
        if window.cutoff is not None or window.until is not None:
            raise ConfigurationError(
                "delay levels are moved whole: a queue cannot be searched by due time; leave "
                "--cutoff and --until out"
            )
        counts = self._counts()
        missing = [name for name, count in counts.items() if count is None]
        problems = (
            Problem(self.names.name, f"{len(missing)} of its queues are missing", "check --from"),
        )
        return Survey(
            count=sum(count or 0 for count in counts.values()),
            problems=problems if missing else (),
        )

    def ranges(self, window: Window, size: int) -> Iterator[KeyRange]:
        """Yield a range for each queue: its place stands where due times stand otherwise."""
        counts = self._counts()
        last = len(counts) - 1
        for place, (name, count) in enumerate(counts.items()):
            yield KeyRange(Key(last - place, name), Key(last - place, name), count or 0)

    def is_same_store_as_target(self, run_id: str) -> bool:
        """Return false: this is no store of ours."""
        return False

    def prepare(self, run_id: str) -> None:
        """Do nothing."""

    def waiting(self, batch: Batch) -> int:
        """Return how many messages are in a batch's level now."""
        with closing(self.transport.session()) as session:
            return session.count(batch.range.first.id)

    @contextmanager
    def opened(self, batch: Batch) -> Iterator[Relay]:
        """Lend the queue of a batch's level; an unacknowledged message returns to its position."""
        with closing(self.transport.relay(batch.range.first.id, prefetch=MOST_HELD)) as relay:
            yield relay

    def close(self) -> None:
        """Leave the transport to its owner."""

    def _counts(self) -> dict[str, int | None]:
        """Return how many messages each queue holds, in the order in which they fall through."""
        names = self.names
        parts = [names.fraction_name(part) for part in range(1, names.parts)]
        queues = [*parts, *reversed(names.level_names)]
        with closing(self.transport.session()) as session:
            missing = session.missing_queues(queues)
            return {name: None if name in missing else session.count(name) for name in queues}
