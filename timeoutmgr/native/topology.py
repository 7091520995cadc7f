"""The delay levels as exchanges, queues and bindings. Pure; a session declares them."""

from typing import Any

from timeoutmgr.contracts.topologies import Binding, Exchange, Queue, Topology
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.native.levels import LEVELS, enter_key, pass_key
from timeoutmgr.native.names import UNROUTABLE, NameSet
from timeoutmgr.transport.settings import QueueType


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
            Queue(names.level_name(level), _of_level(names, kind, level)) for level in levels
        ),
        bindings=tuple(binding for level in levels for binding in _bindings(names, level)),
    )
    return whole if names.parts == 1 else whole + _parts(names, kind, alternate)


def _parts(names: NameSet, kind: QueueType, alternate: dict[str, str]) -> Topology:
    """Return the queues that hold a message for a part of a second before its level."""
    parts = [names.fraction_name(part) for part in range(1, names.parts)]
    # Without an entrance, each message would pass the exchanges of all levels above its own.
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
    """Return where messages go that no binding of the delivery exchange is for."""
    return Topology(
        exchanges=(Exchange(UNROUTABLE, "fanout"),),
        queues=(Queue(UNROUTABLE),),
        bindings=(Binding(UNROUTABLE, UNROUTABLE, ""),),
    )


def _of_level(names: NameSet, queue_type: QueueType, level: int) -> dict[str, Any]:
    return _held(names, queue_type, 2**level * 1000, names.next_exchange(level))


def _held(names: NameSet, queue_type: QueueType, milliseconds: int, then: str) -> dict[str, Any]:
    # No dead-letter routing key: the message keeps its own, which says where it is going.
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
