"""Addresses that queue names denote: queues of the transport, and a node's own queues."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from timeoutmgr.deadletter.name_parser import is_format_name, parse_format_name, parse_path_name
from timeoutmgr.deadletter.names import (
    DirectName,
    DirectSystemName,
    FormatName,
    MachineName,
    MultiElementName,
    Protocol,
)
from timeoutmgr.deadletter.stored_copy import NodeQueue
from timeoutmgr.errors import InvalidMessage

_HERE: Final = (".", "localhost", "127.0.0.1", "::1")

Nodes: TypeAlias = Callable[[], Mapping[str, str]]
"""Returns the known nodes, each with its GUID; called only if a name needs them."""


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """A queue of the transport."""

    queue: str


@dataclass(frozen=True, slots=True)
class NodeQueueAddress:
    """An own queue of *node*; with *queue*, the journal of that queue."""

    node: str
    kind: NodeQueue
    queue: str = ""


Address: TypeAlias = QueueAddress | NodeQueueAddress


def read_name(text: str) -> FormatName | None:
    r"""Parse *text* as a format name or path name; return None for a plain queue name.

    A path name begins with ``.\``, or has a part that only path names have. Raises
    InvalidQueueName.
    """
    if is_format_name(text):
        return parse_format_name(text)
    return parse_path_name(text) if "\\" in text else None


def resolve(text: str, here: str, nodes: Nodes) -> Address:
    """Return the address that *text* denotes on node *here*.

    Raises InvalidQueueName if *text* breaks the grammar, InvalidMessage if it is not a queue here.
    """
    name = read_name(text)
    match name:
        case None:
            return QueueAddress(text)
        case DirectName():
            if name.protocol.is_web or not _is_here(name.host, here):
                raise InvalidMessage(
                    f"queue name {text!r} has host {name.host!r}; the transport finds queues by "
                    f"name, so use the plain name, or '.' or {here!r} as the host"
                )
            if name.journal:
                return NodeQueueAddress(here, NodeQueue.JOURNAL, _queue(name))
            return QueueAddress(_queue(name))
        case DirectSystemName():
            is_here = name.protocol is not Protocol.IPX and _is_here(name.host, here)
            return NodeQueueAddress(
                here if is_here else _known(name.host, nodes(), text), NodeQueue[name.kind.name]
            )
        case MachineName():
            by_guid = {guid.lower(): node for node, guid in nodes().items()}
            return NodeQueueAddress(
                _known(str(name.guid), by_guid, text, by_guid), NodeQueue[name.kind.name]
            )
        case MultiElementName():
            raise InvalidMessage(
                f"queue name {text!r} names several queues, and a message has one destination; "
                "send a message to each queue"
            )
        case _:
            raise InvalidMessage(
                f"queue name {text!r} needs a directory service or a network that does not exist "
                "here; use a plain name, DIRECT=OS: or MACHINE="
            )


def destination(text: str, here: str, nodes: Nodes) -> str:
    """Return the queue for a message to *text*; raise InvalidMessage if the queue is read-only."""
    if not is_format_name(text) and "\\" not in text:
        return text
    found = resolve(text, here, nodes)
    if isinstance(found, NodeQueueAddress):
        raise InvalidMessage(
            f"queue name {text!r} is read-only: only the framework puts messages there; send to "
            "another queue"
        )
    return found.queue


def _is_here(host: str, here: str) -> bool:
    return host in _HERE or host.lower() == here.lower()


def _queue(name: DirectName) -> str:
    return name.queue if name.subqueue is None else f"{name.queue};{name.subqueue}"


def _known(
    wanted: str, known: Mapping[str, str], text: str, names: Mapping[str, str] | None = None
) -> str:
    for each in known:
        if each.lower() == wanted.lower():
            return each if names is None else names[each]
    raise InvalidMessage(
        f"queue name {text!r} names node {wanted!r}, which has no dead letters here; "
        f"known: {', '.join(sorted(known)) or 'none'}"
    )
