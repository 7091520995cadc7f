"""Translation of a row of an NServiceBus timeout table. Pure.

There are two layouts: SQL Persistence (``TimeoutData``, with headers in JSON), and the MSMQ
transport's delayed message store (with headers in the XML of an MSMQ extension).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final
from xml.etree import ElementTree

from timeoutmgr.contracts import Timeout
from timeoutmgr.errors import ConfigurationError, MessageRejected, MigrationFailed
from timeoutmgr.message import headers as names
from timeoutmgr.message.instants import Micros, instant_of, to_wire
from timeoutmgr.message.message import Message
from timeoutmgr.message.routes import is_delayed_retry, timeout_id
from timeoutmgr.message.validation import (
    Limits,
    check_body,
    check_destination,
    check_due,
    check_headers,
)
from timeoutmgr.migration.levels.waiting_message import micros_of, plain
from timeoutmgr.migration.runs import Problem, Survey
from timeoutmgr.transport.envelope import SHORT_STRING

SECOND: Final = 1_000_000
_ROUTING: Final = (names.EXPIRE, names.DESTINATION, names.DELAYED_DESTINATION)
_END_OF_XML: Final = b"</ArrayOfHeaderInfo>"
_ID_CHARACTERS: Final = 200
_SAGA_CHARACTERS: Final = 200
_GUID: Final = re.compile(r"(\{)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(?(1)\})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ForeignColumns:
    """The names of a table's columns in the other product."""

    name: str
    table: str
    columns: tuple[str, ...]
    saga: bool


LAYOUTS: Final = MappingProxyType(
    {
        layout.name: layout
        for layout in (
            ForeignColumns(
                "nservicebus",
                "TimeoutData",
                ("Id", "Destination", "SagaId", "State", "Time", "Headers"),
                saga=True,
            ),
            ForeignColumns(
                "msmq", "timeouts", ("Id", "Destination", "State", "Time", "Headers"), saga=False
            ),
        )
    }
)


def layout_called(name: str) -> ForeignColumns:
    """Return the layout *name*; raise ConfigurationError if it is unknown."""
    found = LAYOUTS.get(name)
    if found is None:
        raise ConfigurationError(f"unknown layout {name!r}; expected {', '.join(LAYOUTS)}")
    return found


class Untranslatable(MigrationFailed):
    """Reason why a row cannot become a timeout."""


def due_of(time: datetime, headers: Mapping[str, str]) -> Micros:
    """Return when a row is due, in UTC.

    A column of whole seconds has lost the fraction, and may be up to a second early; the header
    still has it. If the two differ by more, the row was moved on purpose.
    """
    column = micros_of(time)
    header = instant_of(headers, names.EXPIRE, column)
    return max(column, header) if abs(column - header) <= SECOND else column


@dataclass(frozen=True, slots=True)
class RowTranslator:
    """Translates rows of *layout* for *endpoint*; *renames* maps old destinations to new names."""

    layout: ForeignColumns
    endpoint: str
    renames: Mapping[str, str]
    limits: Limits

    def timeout(self, row: Mapping[str, Any]) -> Timeout:
        """Return *row* (by column names) as a timeout; raise Untranslatable."""
        try:
            return self._timeout(row)
        except (MessageRejected, ValueError, KeyError, RecursionError) as error:
            raise Untranslatable(str(error) or type(error).__name__) from error

    def _timeout(self, row: Mapping[str, Any]) -> Timeout:
        found = read_headers(row["Headers"])
        due = check_due(due_of(time_of(row["Time"]), found))
        given = str(row["Destination"] or found.get(names.REPLY_TO) or "")
        destination = self.renames.get(given, given)
        check_destination(destination, self.limits)
        body = bytes_of(row["State"])
        check_body(body, self.limits)
        kept = {
            name: value
            for name, value in found.items()
            if name not in _ROUTING and not name.startswith(names.PROPERTY_PREFIX)
        }
        kept[names.DELIVER_AT] = to_wire(due)
        check_headers(kept, self.limits)
        row_id = _row_id(row["Id"])
        message_id = plain("message id", kept.get(names.MESSAGE_ID) or row_id, _ID_CHARACTERS)
        content_type = kept.get(names.CONTENT_TYPE, "application/octet-stream")
        return Timeout(
            # The id depends on the row, not the message: two rows of one message must both arrive.
            id=timeout_id(self.endpoint, row_id),
            due=due,
            destination=destination,
            saga_id=_saga(row.get("SagaId") if self.layout.saga else None, kept),
            created=instant_of(kept, names.TIME_SENT, due),
            message=Message(
                id=message_id,
                headers=kept,
                body=body,
                content_type=plain("content type", content_type, SHORT_STRING),
            ),
        )


def read_headers(value: Any) -> dict[str, str]:
    """Return headers from JSON text, an object already read from it, or MSMQ's XML."""
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value)
        if _END_OF_XML in value:
            return _from_xml(value)
        value = value.decode()
    if isinstance(value, str):
        if _END_OF_XML.decode() in value:
            return _from_xml(value.encode())
        if value.startswith(("\\x", "0x")):
            return read_headers(bytes_of(value))
        value = json.loads(value) if value else {}
    if not isinstance(value, dict):
        raise ValueError(f"headers are an object of texts, got {type(value).__name__}")
    # .NET writes null for an empty value.
    return {str(name): "" if each is None else _text(name, each) for name, each in value.items()}


def _from_xml(value: bytes) -> dict[str, str]:
    # Old senders left zeros behind the end.
    value = value[: value.rindex(_END_OF_XML) + len(_END_OF_XML)].lstrip(b"\xef\xbb\xbf")
    if b"<!DOCTYPE" in value or b"<!ENTITY" in value:
        raise ValueError("headers in XML have no document type; this is not MSMQ's")
    try:
        root = ElementTree.fromstring(value)
    except ElementTree.ParseError as error:
        raise ValueError(f"the headers are not XML: {error}") from error
    pairs = [(one.findtext("Key"), one.findtext("Value") or "") for one in root]
    return {key: text for key, text in pairs if key}


def _text(name: Any, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"header {name!r} is {type(value).__name__}, expected a text")
    return value


def bytes_of(value: Any) -> bytes:
    r"""Return a binary value from bytes or the text of an export: ``\x…``, ``0x…``, or base64."""
    if value is None:
        return b""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    text = str(value)
    try:
        if text.startswith(("\\x", "0x")):
            return bytes.fromhex(text[2:])
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise ValueError(
            f"{text[:40]!r} is not a binary value; expected \\x or 0x and hex digits, or base64"
        ) from error


def time_of(value: Any) -> datetime:
    """Return a time from a datetime or ISO 8601 text; without a zone it is UTC.

    Fractions of a microsecond are rounded up, so that the message is not early.
    """
    if isinstance(value, datetime):
        return value
    text = str(value).strip()
    # .NET has seven digits of fraction.
    head, dot, tail = text.partition(".")
    digits = len(tail) - len(tail.lstrip("0123456789"))
    rest = bool(dot) and bool(tail[6:digits].strip("0"))
    if dot and digits > 6:
        text = f"{head}.{tail[:6]}{tail[digits:]}"
    try:
        return datetime.fromisoformat(text) + timedelta(microseconds=rest)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[:40]!r} is not a time; expected ISO 8601") from error


def _row_id(value: Any) -> str:
    """Return a row's id; a GUID in lower case without braces.

    Exports of a server have it in upper case, some in braces, its driver in neither: otherwise one
    row would get two ids, and be sent twice.
    """
    text = str(value)
    return text.strip("{}").lower() if _GUID.fullmatch(text) else text


def _saga(column: Any, headers: Mapping[str, str]) -> str | None:
    if is_delayed_retry(headers):
        return None
    saga = str(column or headers.get(names.SAGA_ID) or "").lower()
    return plain("saga id", saga, _SAGA_CHARACTERS) if saga and saga != names.NO_SAGA else None


MOST_PROBLEMS: Final = 20


def survey_rows(
    rows: Iterable[Mapping[str, Any]], translator: RowTranslator, *, left: int
) -> Survey:
    """Return counts and problems of *rows*; with many problems, the first and a count."""
    destinations: Counter[str] = Counter()
    problems: list[Problem] = []
    more = 0
    earliest = latest = None
    for row in rows:
        try:
            timeout = translator.timeout(row)
        except Untranslatable as error:
            if len(problems) < MOST_PROBLEMS:
                problems.append(Problem(f"row {row.get('Id')}", str(error), "fix or delete it"))
            else:
                more += 1
            continue
        destinations[timeout.destination] += 1
        earliest = timeout.due if earliest is None else min(earliest, timeout.due)
        latest = timeout.due if latest is None else max(latest, timeout.due)
    if more:
        problems.append(Problem(f"{more} more rows", "cannot be read either", "fix the first rows"))
    return Survey(
        count=destinations.total(),
        earliest=earliest,
        latest=latest,
        destinations=dict(destinations),
        problems=tuple(problems),
        left=left,
    )
