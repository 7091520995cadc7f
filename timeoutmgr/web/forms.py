"""Checked filters and numbers from an address or a form."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Self
from urllib.parse import urlencode

from timeoutmgr.contracts import TimeoutFilter
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.foreign import require_storable
from timeoutmgr.message.instants import EARLIEST, LATEST, Micros, from_micros, to_micros
from timeoutmgr.transport.error_queue_retry import FailureFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """A filter as texts."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Return the filter of *given* parameters, unstripped: "abc" and "abc " are two ids."""
        names = {each.name for each in fields(cls)}
        return cls(**{name: text for name, text in given.items() if name in names})

    @property
    def query(self) -> str:
        """The query of an address with this filter."""
        return urlencode({name: text for name, text in asdict(self).items() if text})


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingForm(_Form):
    """The filter of the list of pending timeouts, as texts; empty texts select all."""

    id: str = ""
    saga: str = ""
    destination: str = ""
    type: str = ""
    due_from: str = ""
    due_before: str = ""
    label: str = ""

    @property
    def filter(self) -> TimeoutFilter:
        """The filter in the texts. Raises InvalidMessage."""
        return TimeoutFilter(
            id_prefix=self.id or None,
            saga_id=self.saga or None,
            destination=self.destination or None,
            message_type=self.type or None,
            due_from=instant_of(self.due_from),
            due_before=instant_of(self.due_before),
            labels=(self.label,) if self.label else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureForm(_Form):
    """The filter of the error queue; a group sets exception and type, empty if it has none."""

    exception: str | None = None
    type: str | None = None
    id: str = ""

    @property
    def filter(self) -> FailureFilter:
        """The filter that the texts describe."""
        return FailureFilter(
            ids=frozenset({self.id} if self.id else ()),
            exception=self.exception or None,
            message_type=self.type or None,
            is_group=None not in (self.exception, self.type),
        )


def require_texts(texts: Iterable[object]) -> None:
    """Raise InvalidMessage for a text that databases refuse."""
    for text in texts:
        require_storable("a text of the address or form", str(text))


def instant_of(text: str) -> Micros | None:
    """Return the instant in *text*, in UTC if it has no zone; None for a blank text.

    Raises InvalidMessage.
    """
    if not (text := text.strip()):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidMessage(
            f"{text[:40]!r} is not a time; expected ISO 8601 such as 2030-01-31T09:00"
        ) from None
    instant = to_micros(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
    if not EARLIEST <= instant <= LATEST:
        raise InvalidMessage(f"{text[:40]!r} is outside of the years 1 to 9999 of UTC")
    return instant


def text_of(instant: Micros) -> str:
    """Return *instant* as text for a form field: ISO 8601 in UTC, without a zone."""
    return from_micros(instant).replace(tzinfo=None).isoformat()
