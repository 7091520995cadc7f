"""Delay levels as the origin of a migration: parts of a second, then 28 levels, the longest first.

A message waits for its part of a second, and then falls from a level into shorter ones. Who drains
them in that order meets each message once, or not at all because it was delivered meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

from timeoutmgr.contracts import Clock, Key
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.instants import Micros
from timeoutmgr.migration.runs import Batch, Problem, Range, Survey
from timeoutmgr.migration.window import Window
from timeoutmgr.native.names import NameSet
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.relay import Relay

MOST_HELD: Final = 60_000
"""Messages of others that can be passed over in one level; AMQP counts what is held in 16 bits."""


@dataclass(frozen=True, slots=True)
class LevelsOrigin:
    """The levels called *names* on the broker of *transport*.

    A broker does not tell its time: *clock* is that of the store that keeps the ledger.

    Levels belong to all programs on a broker. *sender* None takes all messages, a name those
    that this endpoint has sent. *renames* are destinations by their old names.
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
        """Count what is in the levels; whose it is and when it is due shows only in the hand."""
        if window.cutoff is not None or window.until is not None:
            raise ConfigurationError(
                "delay levels are taken whole: nobody can look into a queue for due times; leave "
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

    def ranges(self, window: Window, size: int) -> Iterator[Range]:
        """Yield a range for each queue: its place stands where due times stand otherwise."""
        counts = self._counts()
        last = len(counts) - 1
        for place, (name, count) in enumerate(counts.items()):
            yield Range(Key(last - place, name), Key(last - place, name), count or 0)

    def is_where_it_arrives(self, run_id: str) -> bool:
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
        """Lend the queue of a batch's level; what is not acknowledged goes back where it stood."""
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
