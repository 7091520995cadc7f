"""Exchanges, queues and bindings on an AMQP channel: declare, look up and remove them."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from amqp import Message
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed, ResourceLocked

from timeoutmgr.contracts.transports import Binding, Exchange, Topology
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import ConfigurationError, QueueMissing, TopologyMismatch
from timeoutmgr.message.headers import PROBE
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.settings import RoutingTopology

logger = logging.getLogger(__name__)

_KNOWN_FOR: Final = 60.0
_MOST_KNOWN: Final = 10_000
"""Maximum number of queues whose answers are kept: destinations come from callers."""
_NEVER: Final = (False, 0.0)
_TOO_LARGE: Final = re.compile(r"message size \d+ .*max size (\d+)")
_DIFFERS: Final = "inequivalent arg "
"""Part of the broker's answer if an exchange or queue exists with another argument."""
_INVALID: Final = "invalid arg "
"""Part of the broker's answer if a queue of this type cannot have an argument."""
_PROBE_TTL: Final = 10_000
"""Milliseconds until a probe expires that ended in an unexpected queue."""
_MOST_BEFORE_PROBE: Final = 1000
"""Maximum number of messages that are fetched to find a probe: a backlog must not fill memory."""


def declare(channel: Any, topology: Topology) -> None:
    """Declare exchanges and bindings, and the queues whose arguments are given."""
    for exchange in topology.exchanges:
        with _refusals("exchange", exchange.name):
            _declare(channel, exchange.name, exchange.arguments, exchange.kind)
        reach("topology.exchange_declared")
    for queue in topology.queues:
        if queue.arguments is None:
            continue
        declare_queue(channel, queue.name, queue.arguments)
        reach("topology.queue_declared")
    for binding in topology.bindings:
        bind = channel.exchange_bind if binding.to_exchange else channel.queue_bind
        with _refusals("binding of", binding.target):
            bind(binding.target, binding.source, binding.key)
        reach("topology.bound")


def declare_queue(channel: Any, name: str, arguments: Mapping[str, Any]) -> None:
    """Declare a durable queue."""
    with _refusals("queue", name):
        channel.queue_declare(name, durable=True, auto_delete=False, arguments=dict(arguments))


def missing(channel: Any, topology: Topology) -> list[str]:
    """Return the exchanges and queues that do not exist."""
    exchanges = [one.name for one in topology.exchanges if not has_exchange(channel, one.name)]
    queues = [one.name for one in topology.queues if not has_queue(channel, one.name)]
    return [*dict.fromkeys([*exchanges, *queues])]


def remove(channel: Any, topology: Topology) -> None:
    """Delete exchanges and queues, first those that publishers use."""
    for exchange in topology.exchanges:
        channel.exchange_delete(exchange.name)
    for queue in topology.queues:
        channel.queue_delete(queue.name)


def bind_queues(
    channel: Any, queues: Collection[str], exchange: str, key_of: Callable[[str], str]
) -> list[str]:
    """Bind each of *queues*; return the missing queues."""
    absent = []
    for queue in queues:
        key = key_of(queue)
        try:
            with _refusals("binding of", queue):
                channel.queue_bind(queue, exchange, key)
        except NotFound as error:
            if not has_exchange(channel, exchange):
                raise QueueMissing(
                    [exchange], "the delay levels are not there: run `timeoutmgr install`"
                ) from error
            absent.append(queue)
        reach("topology.queue_bound")
    return absent


def is_routed(channel: Any, exchange: str, key: str, rest: str) -> bool:
    """Return whether *exchange* routes *key* to a queue, by sending a probe.

    The probe is removed from the queue *rest*, where it would expire and become a dead letter.
    Closing *channel* returns messages that were fetched with it to their positions.
    """
    returned: list[object] = []
    channel.confirm_select()
    channel.events["basic_return"].add(lambda *_: returned.append(True))
    probe = Message(
        "", expiration=str(_PROBE_TTL), application_headers={PROBE: "True"}, delivery_mode=1
    )
    # A return comes before the confirm: the message is first returned, then confirmed.
    channel.basic_publish_confirm(probe, exchange, key, mandatory=True)
    if not returned:
        with suppress(AccessRefused):  # without the right to read, it is left to expire
            _remove_probe(channel, rest)
    return not returned


def _remove_probe(channel: Any, queue: str) -> None:
    """Remove a probe, whichever it is, from *queue*, unless a satellite was faster."""
    for _ in range(_MOST_BEFORE_PROBE):
        found = channel.basic_get(queue)
        if found is None:
            return
        if PROBE in (found.headers or {}):
            channel.basic_ack(found.delivery_tag)
            return


def has_queue(channel: Any, name: str) -> bool:
    """Return whether the queue *name* exists."""
    with suppress(ResourceLocked):  # another connection declared it as exclusive
        return message_count(channel, name) is not None
    return True


def message_count(channel: Any, name: str) -> int | None:
    """Return how many messages *name* holds, or None if there is no such queue."""
    with suppress(NotFound):  # the broker closed the channel over it; py-amqp has opened it again
        return int(channel.queue_declare(name, passive=True).message_count)
    return None


def has_exchange(channel: Any, name: str) -> bool:
    """Return whether the exchange *name* exists."""
    with suppress(NotFound):
        channel.exchange_declare(name, "", passive=True)
        return True
    return False


@contextmanager
def _refusals(what: str, name: str) -> Iterator[None]:
    try:
        yield
    except PreconditionFailed as error:
        if _DIFFERS in error.reply_text:
            raise TopologyMismatch(name, str(error)) from error
        remedy = "If the virtual host has reached a limit, raise that, or remove queues"
        if _INVALID in error.reply_text:
            remedy = (
                "A queue without x-queue-type is of the virtual host's default queue type: set "
                "that to 'classic', or choose other names"
            )
        refused = f"the broker refuses {what} {name!r} ({error}). {remedy}"
        raise ConfigurationError(refused) from error
    except AccessRefused as error:
        raise ConfigurationError(
            f"the broker's user may not declare {what} {name!r} ({error}); run the installation "
            "with a user that has the permission to configure, write and read it"
        ) from error
    except ResourceLocked as error:
        raise ConfigurationError(
            f"{what} {name!r} is left to the connection that has the queue for itself ({error}); "
            "name a queue that is not exclusive, or send without a delay"
        ) from error


# --- NServiceBus' conventional topology: a fanout exchange for each queue, with its name ------


def declare_own_exchanges(channel: Any, queues: Collection[str]) -> None:
    """Declare the exchanges of existing *queues*, and bind the queues.

    A queue of another owner, such as the error queue, works without an exchange: if the permission
    to declare it is missing, a warning is logged.
    """
    for name in queues:
        exchange, binding = Exchange(name, "fanout"), Binding(name, name, "")
        try:
            declare(channel, Topology(exchanges=(exchange,), bindings=(binding,)))
        except TopologyMismatch as error:
            raise ConfigurationError(
                f"{error}; or set routing_topology = 'direct', with which queues have no exchanges"
            ) from error
        except ConfigurationError as error:
            logger.warning(
                "transport could not declare the exchange of queue %.80r: %s",
                name,
                on_one_line(error),
                extra={"event": "exchange_refused", "destination": name[:80]},
            )


class ExchangeAddresses:
    """Cache of which queues have an exchange of their name; all sessions of a transport share it.

    They also share the broker's maximum body size. The broker reveals it by closing a channel over
    a message, which leaves others in doubt: so no larger body is sent for a minute.

    A program of the conventional topology publishes only to the exchange. Answers of the broker are
    cached for a minute: an exchange that is created meanwhile is used only later, and until then
    messages go straight to the queue.
    """

    def __init__(
        self, chosen: RoutingTopology | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_chosen = chosen is not None
        self._monotonic = monotonic
        self._known: dict[str, tuple[bool, float]] = {}
        self._largest, self._largest_until = 0, 0.0
        self._may_publish = True
        self.is_on = chosen == "conventional"

    def follow(self) -> None:
        """Use exchanges from now on, unless the settings choose a topology."""
        self.is_on |= not self._is_chosen

    def unknown(self, queues: Iterable[str]) -> list[str]:
        """Return the *queues* about which the broker must be asked."""
        if not self._may_publish:
            return []
        now = self._monotonic()
        return [name for name in dict.fromkeys(queues) if self._known.get(name, _NEVER)[1] <= now]

    def note(self, queue: str, *, has_exchange: bool) -> None:
        """Note the broker's answer about *queue*."""
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known[queue] = has_exchange, self._monotonic() + _KNOWN_FOR

    def exchange_of(self, queue: str) -> str:
        """Return the exchange for publishing to *queue*; the default one reaches every queue."""
        return queue if self._known.get(queue, _NEVER)[0] else ""

    def largest_body(self, own: int) -> int:
        """Return the maximum body size: *own*, or a smaller size that the broker just revealed."""
        return min(own, self._largest) if self._monotonic() < self._largest_until else own

    def forget(self, reason: str) -> None:
        """Forget all answers after a connection was lost for *reason*, which may reveal a limit.

        The broker closes a channel over a publish to a deleted exchange; and over a user who may
        not write to an exchange, so that only queues are used from then on.
        """
        self._known.clear()
        if (found := _TOO_LARGE.search(reason)) is not None:
            self._largest, self._largest_until = int(found[1]), self._monotonic() + _KNOWN_FOR
        if reason.startswith(AccessRefused.__name__) and self._may_publish and self.is_on:
            self._may_publish = False
            logger.warning(
                "transport publishes to queues alone, past the exchanges of their names: %s; give "
                "the broker's user the write permission for them, or set routing_topology to "
                "'direct'",
                on_one_line(reason),
                extra={"event": "exchange_refused"},
            )


def has_fanout(channel: Any, name: str) -> bool:
    """Return whether a durable fanout exchange *name* exists.

    False if the user may not ask: only a declaration reveals the type of an exchange. If the
    exchange is deleted in between, the declaration leaves an exchange without a queue, of the type
    that its owner declares.
    """
    if not name or name.startswith("amq.") or not has_exchange(channel, name):
        return False
    try:
        _declare(channel, name, {})
    except (PreconditionFailed, AccessRefused):
        return False
    return True


def bind_exchanges(
    channel: Any, queues: Iterable[str], exchange: str, key_of: Callable[[str], str]
) -> None:
    """Bind the exchanges of the *queues* that have an exchange."""
    for name in queues:
        if has_fanout(channel, name):
            with _refusals("binding of", name):
                channel.exchange_bind(name, exchange, key_of(name))
            reach("topology.bound")


def delete_own_exchange(channel: Any, queue: str) -> None:
    """Delete the exchange of a deleted *queue*, unless something else is bound to it."""
    if not has_fanout(channel, queue):
        return
    try:
        channel.exchange_delete(queue, if_unused=True)
    except PreconditionFailed as error:
        fields = {"event": "exchange_kept", "destination": queue[:80]}
        logger.info(
            "exchange %.80r stays without its queue: %s", queue, on_one_line(error), extra=fields
        )


# --- A marker on RabbitMQ: durable exchanges that nothing is bound to -------------------------
# The name of the first exchange says that the endpoint is marked. Its alternate exchange is the
# second, whose name contains the marker. The broker refuses a differing declaration with that name,
# unless it is too long for AMQP's 255 bytes. Without the right to declare, only the second exchange
# reveals the marker.

UNREADABLE: Final = "(cannot be read)"
"""Stands for a marker that exists but cannot be read, by this user or because it is too long."""

_PREFIX: Final = "timeoutmgr.marker."
_ALTERNATE: Final = "alternate-exchange"
_MARKER: Final = "timeoutmgr."
_CURRENT: Final = re.compile(r"but current is (?:the value )?'timeoutmgr[.](?P<word>[^']+)'")


def read(channel: Any, endpoint: str, expected: str | None) -> str | None:
    """Return the marker of *endpoint*, or None."""
    name = f"{_PREFIX}{endpoint}"
    if not has_exchange(channel, name):
        return None
    wanted = "?" if expected is None else f"{_MARKER}{expected}"
    try:
        # The exchange exists, so nothing is created: the broker only compares.
        _declare(channel, name, {_ALTERNATE: wanted})
    except PreconditionFailed as error:
        found = _CURRENT.search(error.reply_text)
        return found["word"] if found else UNREADABLE
    except AccessRefused:
        is_there = expected is not None and has_exchange(channel, f"{_MARKER}{expected}")
        return expected if is_there else UNREADABLE
    return expected


def write(channel: Any, endpoint: str, word: str, store: str) -> None:
    """Mark *endpoint*; another marker is removed."""
    found = read(channel, endpoint, word)
    if found == word:
        return
    with _refusals("the marker of", endpoint):
        if found is not None:
            erase(channel, endpoint, found)
        second = f"{_MARKER}{word}"
        _declare(channel, second, {})
        _declare(channel, f"{_PREFIX}{endpoint}", {_ALTERNATE: second, "store": store})


def erase(channel: Any, endpoint: str, expected: str | None) -> None:
    """Remove the marker of *endpoint*; a missing marker is fine."""
    found = read(channel, endpoint, expected)
    channel.exchange_delete(f"{_PREFIX}{endpoint}")
    if found not in (None, UNREADABLE):
        channel.exchange_delete(f"{_MARKER}{found}")


def _declare(channel: Any, name: str, arguments: Mapping[str, str], kind: str = "fanout") -> None:
    channel.exchange_declare(name, kind, durable=True, auto_delete=False, arguments=dict(arguments))
