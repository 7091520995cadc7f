"""RabbitMQ's delay levels in a run: the broker's only ones, so nobody else may be in them."""

from collections.abc import Sequence
from contextlib import closing
from typing import Final

from timeoutmgr.contracts import Transport
from timeoutmgr.native.infrastructure import DelayLevels
from timeoutmgr.native.names import OURS, UNROUTABLE
from timeoutmgr.native.topology import delay_topology, unroutable_topology
from timeoutmgr.testing.chaos.processes import ChaosFailed


class Levels:
    """The levels, declared for a run; *bound* are the queues that messages in them are for."""

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
                "the delay levels of this broker hold messages of others, which could not be told "
                "from those of the run; give a virtual host of its own"
            )

    def install(self) -> None:
        """Declare what is missing, and bind the queues."""
        self._levels.install()

    def count(self) -> int:
        """Return how many messages wait in the levels, or came out of them with nowhere to go."""
        waiting = sum(self._levels.counts().values())
        with closing(self._transport.session()) as session:
            if session.missing_queues([UNROUTABLE]):
                return waiting
            return waiting + session.count(UNROUTABLE)

    def clear(self) -> None:
        """Remove what was not there before the run."""
        if self._is_ours:
            self._levels.remove()
            with self._levels.session() as session:
                session.remove(unroutable_topology())
