"""A row that NServiceBus has stored is the timeout that it was there, or says why it is none."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import pytest

from tests.migration.conftest import HOUR
from tests.migration.foreign import SAGA, row, translated
from tests.persistence.making import NOW, SECOND
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_micros, to_wire
from timeoutmgr.message.routes import timeout_id
from timeoutmgr.message.validation import Limits
from timeoutmgr.migration.foreign.rows import (
    LAYOUTS,
    Untranslatable,
    bytes_of,
    due_of,
    layout_called,
    read_headers,
    time_of,
)

XML: Final = (
    '<?xml version="1.0" encoding="utf-8"?><ArrayOfHeaderInfo>'
    "<HeaderInfo><Key>NServiceBus.MessageId</Key><Value>m-1</Value></HeaderInfo>"
    "<HeaderInfo><Key>NServiceBus.EnclosedMessageTypes</Key><Value>Häppy</Value></HeaderInfo>"
    "<HeaderInfo><Key>NServiceBus.Timeouts.Properties.At</Key><Value>x</Value></HeaderInfo>"
    "<HeaderInfo><Key>CorrId</Key></HeaderInfo></ArrayOfHeaderInfo>"
).encode()


def test_a_row_becomes_the_timeout_that_it_is() -> None:
    given = row()

    made = translated(given, LAYOUTS["nservicebus"], "sales", {}, Limits())

    assert made.id == timeout_id("sales", str(given["Id"]))
    assert made.due == NOW + HOUR + 250_000  # the header has the fraction that the column lost
    assert (made.destination, made.saga_id, made.created) == ("billing", str(SAGA), NOW)
    message = made.message
    assert (message.id, message.body, message.content_type) == ("m-1", b"<overdue/>", "text/xml")
    assert message.headers == {
        headers.MESSAGE_ID: "m-1",
        headers.ENCLOSED_MESSAGE_TYPES: "Shop.PaymentOverdue",
        headers.CONTENT_TYPE: "text/xml",
        headers.TIME_SENT: to_wire(NOW),
        headers.DELIVER_AT: to_wire(made.due),
        "NServiceBus.NonDurableMessage": "",
    }


def test_a_row_of_a_delayed_retry_is_no_timeout_of_its_saga() -> None:
    given = row()
    retried = {**json.loads(given["Headers"]), headers.RETRIES_TIMESTAMP: to_wire(NOW)}

    made = translated(
        row(Headers=json.dumps(retried)), LAYOUTS["nservicebus"], "sales", {}, Limits()
    )

    assert made.saga_id is None


def test_a_row_of_the_msmq_store_has_its_headers_in_xml() -> None:
    given = row(Id="guid\\42", Headers=XML + b"\0\0", Destination="billing@HOST")

    made = translated(given, LAYOUTS["msmq"], "sales", {"billing@HOST": "billing"}, Limits())

    assert (made.destination, made.message.id, made.saga_id) == ("billing", "m-1", None)
    assert made.message.headers[headers.ENCLOSED_MESSAGE_TYPES] == "Häppy"
    assert made.message.headers["CorrId"] == ""
    assert not any(name.startswith(headers.PROPERTY_PREFIX) for name in made.message.headers)


def test_two_rows_of_one_message_are_two_timeouts() -> None:
    one, other = (translated(row(), LAYOUTS["nservicebus"], "sales", {}, Limits()) for _ in "ab")

    assert one.message.id == other.message.id
    assert one.id != other.id


@pytest.mark.parametrize("spelled", ["{}", "{{{}}}"])
def test_a_row_has_one_id_however_an_export_spells_its_guid(spelled: str) -> None:
    given = row()
    text = spelled.format(given["Id"]).upper()

    of_table, of_export = (
        translated(each, LAYOUTS["nservicebus"], "sales", {}, Limits())
        for each in (given, row(Id=text))
    )

    assert of_table.id == of_export.id


def test_other_ids_that_differ_in_case_are_two() -> None:
    small, large = (
        translated(row(Id=each), LAYOUTS["msmq"], "sales", {}, Limits()) for each in ("a1", "A1")
    )

    assert small.id != large.id


@pytest.mark.parametrize(
    ("column", "header", "due"),
    [
        (0, 250_000, 250_000),
        (0, SECOND, SECOND),
        (0, SECOND + 1, 0),  # moved on purpose
        (SECOND, 0, SECOND),
        (9 * SECOND, 0, 9 * SECOND),
        (5, None, 5),
    ],
)
def test_a_lost_fraction_comes_from_the_header_and_never_makes_it_early(
    column: int, header: int | None, due: int
) -> None:
    given = {} if header is None else {headers.EXPIRE: to_wire(NOW + header)}
    time = from_micros(NOW + column).replace(tzinfo=None)

    assert due_of(time, given) == NOW + due


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2030-01-31 09:00:00", datetime(2030, 1, 31, 9)),
        ("2030-01-31T09:00:00.1234567", datetime(2030, 1, 31, 9, 0, 0, 123457)),
        ("2030-01-31T09:00:00.1234560", datetime(2030, 1, 31, 9, 0, 0, 123456)),
        ("2030-01-31T09:00:00.9999991", datetime(2030, 1, 31, 9, 0, 1)),
        ("2030-01-31 09:00:00.1234567+01:00", datetime(2030, 1, 31, 9, 0, 0, 123457)),
        ("2030-01-31 09:00:00.5", datetime(2030, 1, 31, 9, 0, 0, 500000)),
    ],
)
def test_times_are_read_as_exports_spell_them(text: str, expected: datetime) -> None:
    zone = timezone(timedelta(hours=1)) if "+" in text else None

    assert time_of(text) == expected.replace(tzinfo=zone)


def test_bytes_are_read_as_exports_spell_them() -> None:
    assert [bytes_of(one) for one in (b"a", r"\x6162", "0x6162", "YWI=", None)] == [
        b"a",
        b"ab",
        b"ab",
        b"ab",
        b"",
    ]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"Destination": None, "Headers": "{}"}, "got ''"),
        ({"Destination": "sales.Timeouts"}, "belongs to"),
        ({"Headers": "{"}, "Expecting"),
        ({"Headers": "[]"}, "an object of texts"),
        ({"Headers": '{"a": 1}'}, "header 'a' is int"),
        ({"Headers": b"<!DOCTYPE a><ArrayOfHeaderInfo></ArrayOfHeaderInfo>"}, "no document type"),
        ({"Headers": b"<a></ArrayOfHeaderInfo>"}, "not XML"),
        ({"State": "no base64!"}, "not a binary value"),
        ({"Time": "soon"}, "is not a time"),
        ({"Headers": json.dumps({headers.MESSAGE_ID: "m" * 201})}, "more than 200 characters"),
        ({"Headers": json.dumps({headers.MESSAGE_ID: "ä" * 128})}, "or 255 bytes"),
        ({"Headers": json.dumps({headers.CONTENT_TYPE: "c" * 256})}, "the content type has more"),
        ({"SagaId": "s" * 201}, "the saga id has more than 200"),
        ({"SagaId": "a\0b"}, "has a NUL"),
    ],
)
def test_a_row_that_cannot_be_translated_says_why(more: dict[str, Any], why: str) -> None:
    with pytest.raises(Untranslatable, match=why):
        translated(row(**more), LAYOUTS["nservicebus"], "sales", {}, Limits())


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nservicebus, msmq"):
        layout_called("hangfire")


def test_headers_that_are_read_already_stay_as_they_are() -> None:
    assert read_headers({"a": "b"}) == {"a": "b"}
    assert read_headers(b'{"a": "b"}') == {"a": "b"}
    assert read_headers("\\x" + b'{"a": "b"}'.hex()) == {"a": "b"}
    assert read_headers("") == {}


def test_a_row_for_a_queue_that_is_not_allowed_is_left_out() -> None:
    limits = Limits(allowed_destinations=("shipping",))

    with pytest.raises(Untranslatable, match="outside allowed_destinations"):
        translated(row(), LAYOUTS["nservicebus"], "sales", {}, limits)
