"""Options of a queue that kombu declared: priority, lengths of life, limit, ownership."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.message.instants import LATEST, Micros
from timeoutmgr.transport.queue_view import QueueProperties

_MILLISECOND: Final = 1000
_OVERFLOWS: Final = {"reject-publish": False, "drop-head": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """The options with which a queue was declared. The row of a plain queue has none.

    *message_ttl* and *expires* are in microseconds. *drop_head* makes room in a full queue;
    otherwise a full queue refuses new messages.
    """

    max_priority: int | None = None
    message_ttl: Micros | None = None
    expires: Micros | None = None
    max_length: int | None = None
    drop_head: bool = False
    auto_delete: bool = False
    exclusive: bool = False
    transient: bool = False

    @property
    def is_temporary(self) -> bool:
        """Whether the queue is deleted with its last owner."""
        return self.auto_delete or self.exclusive or (self.transient and self.expires is not None)

    @property
    def has_owners(self) -> bool:
        """Whether the owners of the queue are recorded."""
        return self.is_temporary or self.expires is not None

    def properties(self) -> QueueProperties:
        """Return the options under RabbitMQ's names, so that losses are worded alike."""
        given = {
            "x-expires": self.expires and self.expires // _MILLISECOND,
            "x-message-ttl": self.message_ttl and self.message_ttl // _MILLISECOND,
            "x-max-length": self.max_length,
            "x-overflow": "drop-head" if self.drop_head else "reject-publish",
        }
        return QueueProperties(
            auto_delete=self.auto_delete, exclusive=self.exclusive, arguments=given
        )

    def text(self) -> str:
        """Return the options as text for the queue's row."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})


PLAIN: Final = QueueOptions()


def options_of(text: str | None) -> QueueOptions:
    """Return the options from the text of a queue's row."""
    return PLAIN if text is None else QueueOptions(**json.loads(text))


def declared_options(
    arguments: Mapping[str, Any] | None,
    *,
    auto_delete: bool = False,
    exclusive: bool = False,
    durable: bool = True,
) -> QueueOptions:
    """Return the options of a declaration.

    Raises ConfigurationError for a value out of range, and for a dead-letter exchange.
    """
    given = arguments or {}
    if (exchange := given.get("x-dead-letter-exchange")) is not None:
        raise ConfigurationError(
            f"the SQL queue has no dead-letter exchanges, got {exchange!r:.80}: messages that are "
            "rejected or expire would be lost; declare the queue without x-dead-letter-exchange"
        )
    overflow = given.get("x-overflow") or "reject-publish"
    if not isinstance(overflow, str) or overflow not in _OVERFLOWS:
        raise ConfigurationError(
            f"x-overflow of a queue is one of {sorted(_OVERFLOWS)}, got {overflow!r:.80}"
        )
    expires = _milliseconds(given, "x-expires", lowest=1)
    max_length = _number(given, "x-max-length")
    return QueueOptions(
        max_priority=_number(given, "x-max-priority", lowest=1, highest=255),
        message_ttl=_milliseconds(given, "x-message-ttl"),
        expires=expires,
        max_length=max_length,
        drop_head=max_length is not None and _OVERFLOWS[overflow],
        auto_delete=bool(auto_delete),
        exclusive=bool(exclusive),
        transient=expires is not None and not durable,
    )


def _milliseconds(given: Mapping[str, Any], name: str, lowest: int = 0) -> Micros | None:
    number = _number(given, name, lowest=lowest)
    return None if number is None else number * _MILLISECOND


def _number(
    given: Mapping[str, Any], name: str, *, lowest: int = 0, highest: int = 2**40
) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise ConfigurationError(
            f"{name} of a queue is a whole number from {lowest} to {highest}, got {value!r:.80}"
        )
    return value


# --- the effect of the options on a message's row -------------------------------------------------


def asked_by(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``priority`` and ``ttl`` of kombu's *properties* as ``shaped`` reads them.

    Raises InvalidMessage unless both are whole numbers.
    """
    ends = properties.get("expiration")
    if not properties.get("priority") and ends is None:
        return {}
    try:
        ttl = None if ends is None else max(int(ends), 0) * _MILLISECOND
        return {"priority": int(properties.get("priority") or 0), "ttl": ttl}
    except (TypeError, ValueError, OverflowError):
        raise InvalidMessage(
            f"priority and expiration of a message are whole numbers, got "
            f"{properties.get('priority')!r:.80} and {ends!r:.80}"
        ) from None


def asks(row: Mapping[str, Any]) -> bool:
    """Return whether *row* has a value that only ``shaped`` turns into columns."""
    return "ttl" in row


def ends(row: Mapping[str, Any], options: QueueOptions) -> bool:
    """Return whether *row* expires in its queue, so that ``shaped`` needs the time."""
    return row.get("ttl") is not None or options.message_ttl is not None


def shaped(row: dict[str, Any], options: QueueOptions, now: Micros | None) -> dict[str, Any]:
    """Return *row*, which may have a ``priority`` and a ``ttl``, as its queue stores it.

    Ranks sort ascending, so that one index serves every database: 0 is no priority, -1 the lowest.
    *now* is read from the clock that receivers compare with.
    """
    asked = int(row.get("priority") or 0)
    ends = [ttl for ttl in (row.get("ttl"), options.message_ttl) if ttl is not None]
    highest = options.max_priority
    # Both columns last, also if they are empty: a COPY uses the column order of the first row.
    kept = {name: value for name, value in row.items() if name not in ("priority", "ttl")}
    kept["priority"] = 0 if highest is None else -1 - min(max(asked, 0), highest)
    kept["discard_at"] = min(now + min(ends), LATEST) if ends and now is not None else None
    return kept
