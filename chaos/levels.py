"""RabbitMQ's delay levels in a run: a broker has only one set, which the run must not share."""

from collections.abc import Sequence
from contextlib import closing
from typing import Final

from chaos.processes import ChaosFailed
from timeoutmgr.contracts import Transport
from timeoutmgr.native.infrastructure import DelayLevels, delay_topology, unroutable_topology
from timeoutmgr.native.names import OURS, UNROUTABLE


class Levels:
    """The levels, declared for a run; *bound* are the destination queues of their messages."""

    def __init__(self, transport: Transport, bound: Sequence[str]) -> None:
        self._transport: Final = transport
        self._levels: Final = DelayLevels(
            transport=transport, names=OURS, queue_type=OURS.queue_types[0], bound=bound
        )
        everything = delay_topology(OURS) + unroutable_topology()
        with self._levels.session() as session:
            parts = len(everything.exchanges) + len(everything.queues)
            self._is_ours: Final = len(session.missing(everything)) == parts
        if not self._is_ours and self.count():
            raise ChaosFailed(
                "the delay levels of this broker hold messages of other programs, and the run "
                "could not tell its messages apart; give the run a virtual host of its own"
            )

    def install(self) -> None:
        """Declare missing exchanges and queues, and bind the queues."""
        self._levels.install()

    def count(self) -> int:
        """Return how many messages wait in the levels, or left the levels unroutable."""
        waiting = sum(self._levels.counts().values())
        with closing(self._transport.session()) as session:
            if session.missing_queues([UNROUTABLE]):
                return waiting
            return waiting + session.count(UNROUTABLE)

    def clear(self) -> None:
        """Remove the levels, if the run declared them."""
        if self._is_ours:
            self._levels.remove()
            with self._levels.session() as session:
                session.remove(unroutable_topology())
