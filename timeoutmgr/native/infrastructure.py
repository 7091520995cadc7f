"""Delay levels of an endpoint on the broker: their declaration, checks and bindings."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import Any, Final, cast

from timeoutmgr.contracts import InspectsQueues, TopologySession, Transport, TransportSession
from timeoutmgr.contracts.transports import Binding, Exchange, Queue, Topology
from timeoutmgr.errors import CombinationRefused, ConfigurationError, QueueMissing
from timeoutmgr.features.parts import QUEUE_HOLDS_UP
from timeoutmgr.native.levels import LEVELS, binding_key, enter_key, pass_key, routing_key
from timeoutmgr.native.names import UNROUTABLE, NameSet
from timeoutmgr.transport.settings import QueueType

logger = logging.getLogger(__name__)

# --- the delay levels as exchanges, queues and bindings. Pure; a session declares them --------


def delay_topology(names: NameSet, queue_type: QueueType | None = None) -> Topology:
    """Return the 28 levels called *names*, and the delivery exchange behind them."""
    kind = queue_type or names.queue_types[0]
    if kind not in names.arguments:
        raise ConfigurationError(
            f"the levels of {names.name!r} are {' or '.join(names.queue_types)} queues, got "
            f"{kind!r}: with other arguments no two programs could share them"
        )
    alternate = {"alternate-exchange": UNROUTABLE} if names.alternate else {}
    levels = range(LEVELS - 1, -1, -1)
    whole = Topology(
        exchanges=tuple(
            Exchange(name, "topic", alternate)
            for name in (names.delivery, *reversed(names.level_names))
        ),
        queues=tuple(
            Queue(
                names.level_name(level),
                _held(names, kind, 2**level * 1000, names.next_exchange(level)),
            )
            for level in levels
        ),
        bindings=tuple(binding for level in levels for binding in _bindings(names, level)),
    )
    return whole if names.parts == 1 else whole + _parts(names, kind, alternate)


def _parts(names: NameSet, kind: QueueType, alternate: dict[str, str]) -> Topology:
    """Return the queues that keep a message for part of a second before it enters its level."""
    parts = [names.fraction_name(part) for part in range(1, names.parts)]
    # Without an entrance, a message would pass through the exchanges of all higher levels.
    ways = [
        Binding(names.entrance, names.level_name(level), enter_key(level), to_exchange=True)
        for level in range(LEVELS)
    ]
    due = Binding(names.entrance, names.delivery, enter_key(None), to_exchange=True)
    return Topology(
        exchanges=(
            Exchange(names.entrance, "topic", alternate),
            *(Exchange(name, "fanout") for name in parts),
        ),
        queues=tuple(
            Queue(name, _held(names, kind, 1000 * part // names.parts, names.entrance))
            for part, name in enumerate(parts, 1)
        ),
        bindings=(*ways, due, *(Binding(name, name, "") for name in parts)),
    )


def unroutable_topology() -> Topology:
    """Return exchange and queue for messages without a binding of the delivery exchange."""
    return Topology(
        exchanges=(Exchange(UNROUTABLE, "fanout"),),
        queues=(Queue(UNROUTABLE),),
        bindings=(Binding(UNROUTABLE, UNROUTABLE, ""),),
    )


def _held(names: NameSet, queue_type: QueueType, milliseconds: int, then: str) -> dict[str, Any]:
    # No dead-letter routing key: the message keeps its own, which names its destination.
    return {
        **names.arguments[queue_type],
        "x-message-ttl": milliseconds + names.margin,
        "x-dead-letter-exchange": then,
    }


def _bindings(names: NameSet, level: int) -> tuple[Binding, Binding]:
    own = names.level_name(level)
    return (
        Binding(own, own, pass_key(level, 1)),
        Binding(own, names.next_exchange(level), pass_key(level, 0), to_exchange=True),
    )


_MOST_EXAMINED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Destinations:
    """Binds destinations of *endpoint* to the levels called *names*; examines each once."""

    names: NameSet
    endpoint: str
    error_queue: str
    _examined: set[str] = field(default_factory=set, init=False)

    def __call__(self, session: TransportSession, queues: Sequence[str]) -> list[str]:
        """Bind each of *queues*; return the queues that do not exist.

        Logs a warning for a queue that may block a level.
        """
        missing = with_exchanges(session).bind_queues(queues, self.names.delivery, binding_key)
        found = {queue for queue in queues if queue not in missing}
        if new := sorted(found - self._examined):
            self._examine(session, new)
        return missing

    def _examine(self, session: TransportSession, queues: Sequence[str]) -> None:
        if len(self._examined) > _MOST_EXAMINED:  # bounded, because destinations come from callers
            self._examined.clear()
        self._examined.update(queues)
        if not isinstance(session, InspectsQueues):
            return
        # If a queue of another endpoint has this error queue, a single request examines it.
        for report in session.inspect_queues(queues, error_queue=self.error_queue, policies=False):
            for each in report.refusals:
                logger.warning(
                    "queue %.80r may hold up delayed messages (%s): %s",
                    report.queue,
                    each,
                    QUEUE_HOLDS_UP,
                    extra={"event": "queue_may_hold_up", "endpoint": self.endpoint},
                )


NOBODY: Final = "timeoutmgr.v1.nobody"
"""Name of a destination that is never bound."""
OLDEST_FOR_QUORUM: Final = (3, 10)
"""First version of RabbitMQ whose quorum queues dead-letter at least once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayLevels:
    """The levels called *names* on the broker of *transport*, for the queues *bound*."""

    transport: Transport
    names: NameSet
    queue_type: QueueType
    bound: Sequence[str] = ()

    def install(self) -> None:
        """Declare missing levels, and bind; idempotent and safe to run concurrently.

        Raises TopologyMismatch, CombinationRefused for an unsuitable broker, and
        TransportUnavailable.
        """
        with self.session() as session:
            check_broker(session.server_version, self.queue_type)
            session.declare(unroutable_topology())
            session.declare(delay_topology(self.names, self.queue_type))
            missing = session.bind_queues(self.bound, self.names.delivery, binding_key)
        if missing:
            raise QueueMissing(missing, "run `timeoutmgr install`")

    def check(self) -> None:
        """Raise QueueMissing if levels are missing, CombinationRefused for the wrong broker."""
        with self.session() as session:
            check_broker(session.server_version, self.queue_type)
            missing = session.missing(unroutable_topology())
            missing += session.missing(delay_topology(self.names, self.queue_type))
        if missing:
            raise QueueMissing(
                missing, "they are the delay levels: run `timeoutmgr install`, or install = true"
            )

    def remove(self) -> None:
        """Delete the levels with all their messages, including those of other endpoints."""
        with self.session() as session:
            session.remove(delay_topology(self.names, self.queue_type))

    def has_alternate(self) -> bool:
        """Return whether messages that the delivery exchange cannot route reach a queue."""
        with self.session() as session:
            return session.is_routed(self.names.delivery, routing_key(0, NOBODY), UNROUTABLE)

    def counts(self) -> dict[str, int]:
        """Return how many messages each level has, longest delay first; omit missing levels.

        A message that is moving between two levels may be counted in neither.
        """
        queues = [one.name for one in delay_topology(self.names, self.queue_type).queues]
        with self.session() as session:
            missing = set(session.missing_queues(queues))
            return {queue: session.count(queue) for queue in queues if queue not in missing}

    def session(self) -> AbstractContextManager[TopologySession]:
        """Yield a session that supports exchanges."""
        return closing(with_exchanges(self.transport.session()))


def with_exchanges(session: TransportSession) -> TopologySession:
    """Return *session* with its type: a prerequisite of the feature ensures RabbitMQ."""
    return cast(TopologySession, session)


def check_broker(version: tuple[int, ...], queue_type: QueueType) -> None:
    """Raise CombinationRefused for a broker on which the levels would lose messages."""
    shown = ".".join(map(str, version)) or "of another make"
    if not version:
        raise CombinationRefused(
            f"native delayed delivery on a broker {shown}",
            "the levels need RabbitMQ's dead-letter exchanges",
            "Use TimeoutManager, which works on every transport.",
        )
    if queue_type == "quorum" and version < OLDEST_FOR_QUORUM:
        raise CombinationRefused(
            f"native delayed delivery in quorum queues on RabbitMQ {shown}",
            "before 3.10 quorum queues drop messages that cannot be passed on to the next level",
            "Upgrade the broker; or say queue_type='classic' and accept_loss=True, with which a "
            "broker that is killed loses messages.",
        )
