"""Views of a queue: depth, messages on brokers that cannot browse, owner, and properties."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from timeoutmgr.contracts import BearsMarkers, Receiver, Transport, TransportSession
from timeoutmgr.errors import ConfigurationError, TransportUnavailable
from timeoutmgr.message.message import Received
from timeoutmgr.message.routes import DELAYED, DISPATCHER, TIMEOUTS

MOST_HELD: Final = 65_535
"""Messages that a receiver of AMQP can hold at once."""
_PAGE: Final = 100
_WAIT: Final = 2.0
_EMPTY: Final = 0.1


def browse(open_receiver: Callable[[int], Receiver], limit: int, count: int) -> Generator[Received]:
    """Yield up to *limit* messages of a queue that has about *count*, then give them back.

    All go back together at the end, and so keep their order.
    """
    limit = min(limit, MOST_HELD)
    if not limit:
        return
    with closing(open_receiver(limit)) as receiver:
        seen = 0
        while seen < limit:
            page = receiver.receive(min(_PAGE, limit - seen), _WAIT if seen < count else _EMPTY)
            if not page:
                return
            seen += len(page)
            yield from page


def count_waiting(transport: Transport, queue: str) -> int | None:
    """Return how many messages wait in *queue*; None (unknown) while the broker is away.

    None also if the queue or the queue tables are missing, because nothing was installed.
    """
    try:
        transport.check()
        with closing(transport.session()) as session:
            return session.count(queue)
    except (TransportUnavailable, ConfigurationError):
        return None


def waiting_text(count: int | None, queue: str) -> str:
    """Return a sentence for people: *count* messages wait in *queue*."""
    if count is None:
        return f"how many messages wait in {queue} to be stored is not known: it cannot be reached"
    if count == 1:
        return f"1 message waits in {queue} to be stored"
    return f"{count} messages wait in {queue} to be stored"


# --- whether a queue with a satellite's name is one: the transport is asked -----------------------

_KNOWN_FOR: Final = 10.0
"""Seconds for which an answer is cached: an endpoint may be installed meanwhile."""
_MOST_KNOWN: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class InstalledSatellites:
    """Whether the endpoint to which a satellite's queue would belong is installed."""

    transport: Transport
    monotonic: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[bool, float]] = field(default_factory=dict, repr=False)

    def __call__(self, name: str) -> bool:
        """Return whether *name*, which ends like a satellite's queue, is a satellite's queue.

        Raises TransportUnavailable.
        """
        now = self.monotonic()
        answer, until = self._known.get(name, (False, now))
        if now < until:
            return answer
        with closing(self.transport.session()) as session:
            answer = _is_installed(session, name)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[name] = answer, now + _KNOWN_FOR
        return answer


def _is_installed(session: TransportSession, name: str) -> bool:
    endpoint, dot, satellite = name.rpartition(".")
    if name.endswith(DISPATCHER):
        return True
    if dot + satellite == TIMEOUTS:
        return not session.missing_queues([endpoint + DISPATCHER])
    if endpoint and not session.missing_queues([endpoint]):
        return True
    # A send-only endpoint has a queue for delayed messages, but no queue of its own name.
    if dot + satellite != DELAYED or not isinstance(session, BearsMarkers):
        return False
    return session.borne_marker(name, None) is not None


# --- properties of an existing queue, in RabbitMQ's names, and which of these drop messages

_DROP_HEAD: Final = "drop-head"
_CLASSIC_ONLY: Final = "reject-publish-dlx"
"""An overflow mode that RabbitMQ also accepts for quorum queues, which then drop their head."""
_KEEPS_WHAT_IT_HAS: Final = frozenset({"reject-publish", _CLASSIC_ONLY})
"""Overflow modes in which a full queue refuses new messages, and so loses no accepted message."""

_LENGTHS: Final = ("max-length", "max-length-bytes")

_DEFAULT_LIMIT: Final = 20
"""Default number of deliveries after which a quorum queue of RabbitMQ 4 gives up a message."""
_NO_DEFAULT: Final = (3,)
"""A RabbitMQ version that gives up a message only if an argument or a policy says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProperties:
    """Properties of a queue's declaration; its *policy* has names without ``x-``."""

    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)
    policy: Mapping[str, object] = field(default_factory=dict)
    meant: Mapping[str, Any] = field(default_factory=dict)
    """The arguments that the queue should have: only a deviation from them counts as a loss."""

    @property
    def kind(self) -> str:
        """The queue's type: classic, quorum or stream."""
        return str(self.arguments.get("x-queue-type", "classic"))

    def delivery_limit(self, server_version: tuple[int, ...]) -> int | None:
        """Return after how many deliveries a message is given up; None means never."""
        if self.kind != "quorum":
            return None
        given = (self.arguments.get("x-delivery-limit"), self.policy.get("delivery-limit"))
        limits = [each for each in given if isinstance(each, int)]
        if not limits:
            return _DEFAULT_LIMIT if server_version >= (4,) else None
        return min((each for each in limits if each >= 0), default=None)

    @property
    def dead_message_queue(self) -> str | None:
        """The queue that gets dead messages directly, by its name; None if there is none."""
        exchange, key = self.dead_messages("exchange"), self.dead_messages("routing-key")
        return str(key) if exchange == "" and key else None

    def dead_messages(self, part: str) -> object:
        """Return *part* of the settings for dead messages, or None."""
        # An argument of the queue wins over a policy.
        return self.arguments.get(f"x-dead-letter-{part}", self.policy.get(f"dead-letter-{part}"))

    def losses(self, dead_end: str) -> tuple[str, ...]:
        """Return a sentence per kind of loss; *dead_end* says why dead messages reach no queue."""
        return (*self._own_losses(), *self._given_up(_NO_DEFAULT, dead_end), *self._shared_losses())

    def default_losses(self, server_version: tuple[int, ...], dead_end: str) -> tuple[str, ...]:
        """Return the loss by the broker's default delivery limit, if the queue has no other."""
        if self.delivery_limit(_NO_DEFAULT) is not None:
            return ()
        return tuple(self._given_up(server_version, dead_end))

    def refusals(self) -> tuple[str, ...]:
        """Return a sentence for each limit at which the queue refuses further messages."""
        if self._overflow() not in _KEEPS_WHAT_IT_HAS:
            return ()
        return tuple(
            f"{each}, and its overflow is {self._overflow()}"
            for name in _LENGTHS
            for each in self._set(name)
        )

    def _given_up(self, server_version: tuple[int, ...], dead_end: str) -> Iterator[str]:
        limit = self.delivery_limit(server_version)
        if limit is not None and dead_end:
            yield (
                f"the delivery limit is {limit}, and {dead_end}: the broker "
                "drops a message whose deliveries fail more often"
            )

    def _own_losses(self) -> Iterator[str]:
        if not self.durable:
            yield "durable is false: a restart of the broker deletes the queue"
        if self.auto_delete:
            yield "auto_delete is true: the queue goes with its last consumer"
        if self.exclusive:
            yield "exclusive is true: the queue goes with the connection that declared it"
        if self.kind == "stream":
            yield "x-queue-type is 'stream': a stream never settles a message, it ages it out"

    def _differences(self) -> Iterator[str]:
        for name, wanted in self.meant.items():
            if (found := self.arguments.get(name)) != wanted:
                yield f"{name} is {found}, and should be {wanted}"
        key = self.dead_messages("routing-key")
        if self.meant and key is not None:
            yield f"the dead-letter routing key is {key}: the broker passes messages on under it"

    def _shared_losses(self) -> Iterator[str]:
        yield from self._differences()
        for name, consequence in (
            ("expires", "the broker deletes the queue when no consumer was there for so long"),
            ("message-ttl", "the broker removes a message that waits for longer"),
        ):
            yield from (f"{each}: {consequence}" for each in self._set(name))
        if self._overflow() in _KEEPS_WHAT_IT_HAS:
            return
        for name in _LENGTHS:
            for each in self._set(name):
                yield f"{each}: a full queue drops its oldest message ({self._overflow()})"

    def _set(self, name: str) -> Iterator[str]:
        argument, meant = self.arguments.get(f"x-{name}"), self.meant.get(f"x-{name}")
        if argument is not None and meant is None:
            yield f"x-{name} is {argument}"
        limit = self.policy.get(name)
        # The lower of argument and policy counts.
        if limit is not None and (meant is None or meant > limit):
            yield f"a policy sets {name} to {limit}"

    def _overflow(self) -> str:
        # An argument of the queue wins over a policy here; for limits the lower value counts.
        found = str(self.arguments.get("x-overflow") or self.policy.get("overflow") or _DROP_HEAD)
        if found == _CLASSIC_ONLY and self.kind == "quorum":
            return f"{_DROP_HEAD}, as {found} is for classic queues alone"
        return found
