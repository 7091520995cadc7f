"""Labels of a delayed message: texts ``name=value`` by which a store finds the timeout."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.message import Message
from timeoutmgr.message.redaction import shown

Labels: TypeAlias = Mapping[str, str | Collection[str]]
"""Values by name; several values of a name are several labels."""
NO_LABELS: Final[Labels] = MappingProxyType({})
LABEL_CHARACTERS: Final = 240
"""Maximum length of a label, name and value together."""
MOST_LABELS: Final = 50
"""Maximum labels of a message: a store writes a row for each."""


def label_texts(labels: Labels) -> tuple[str, ...]:
    """Return *labels* as texts ``name=value``, sorted. Raises InvalidMessage."""
    if not isinstance(labels, Mapping):
        raise InvalidMessage(f"labels are a mapping of names to values, got {shown(labels)}")
    found = {
        _label(name, value) for name, values in labels.items() for value in _values(name, values)
    }
    if len(found) > MOST_LABELS:
        raise InvalidMessage(f"a message has at most {MOST_LABELS} labels, got {len(found)}")
    return tuple(sorted(found))


def _values(name: str, values: str | Collection[str]) -> Collection[str]:
    if isinstance(values, str):
        return (values,)
    if not isinstance(values, Collection):
        raise InvalidMessage(f"label {name!r:.80} is a text or several, got {shown(values)}")
    return values


def label_headers(labels: Labels) -> dict[str, str]:
    """Return the header with *labels*, for queues and stores; no header without labels."""
    texts = label_texts(labels)
    return {headers.LABELS: json.dumps(texts, separators=(",", ":"))} if texts else {}


def labels_of(message: Message) -> tuple[str, ...]:
    """Return the labels of *message* as texts, sorted; empty if the header cannot be read."""
    if headers.LABELS not in message.headers:
        return ()
    try:
        return check_labels(message)
    except InvalidMessage:
        return ()


def check_labels(message: Message) -> tuple[str, ...]:
    """Return the labels of *message*, which must have the header.

    Raises InvalidMessage for a malformed header: a stranger may have written it.
    """
    text = message.headers[headers.LABELS]
    try:
        found = json.loads(text)
        if not isinstance(found, list) or len(found) > MOST_LABELS:
            raise ValueError(f"expected a list of at most {MOST_LABELS} texts")
        return tuple(sorted({_label(*str(each).partition("=")[::2]) for each in found}))
    except (ValueError, RecursionError, InvalidMessage) as error:
        raise InvalidMessage(
            f"header {headers.LABELS!r} is {text!r:.80}: {str(error)[:200]}; expected a JSON list "
            "of texts name=value"
        ) from error


def _label(name: str, value: str) -> str:
    if not isinstance(name, str) or not isinstance(value, str):
        raise InvalidMessage(
            f"label {shown(name)} is {shown(value)}; give texts, or a list of texts as the value"
        )
    both = f"{name}={value}"
    if not name or "=" in name or not value or not both.isprintable():
        raise InvalidMessage(
            f"label {both!r:.80} is not printable text: give a name without '=', and a value"
        )
    if len(both) > LABEL_CHARACTERS:
        raise InvalidMessage(
            f"label {both!r:.80} has {len(both)} characters with its name, at most "
            f"{LABEL_CHARACTERS} are kept; give a digest of the value"
        )
    return both
