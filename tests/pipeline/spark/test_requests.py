"""The rules as Spark's expressions, and as the endpoint applies them, give the same answers."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from timeoutmgr.contracts import Timeout
from timeoutmgr.errors import ConfigurationError, InvalidMessage, MessageRejected
from timeoutmgr.message.instants import EARLIEST, LATEST, from_micros, to_micros
from timeoutmgr.message.message import Message
from timeoutmgr.message.routes import Clearing, timeout_id, to_timeout_manager
from timeoutmgr.message.validation import Limits
from timeoutmgr.persistence.sql.rows import to_row
from timeoutmgr.pipeline.errors import WrongColumns
from timeoutmgr.pipeline.options import COLUMNS, RequestRules
from timeoutmgr.pipeline.transforms.requests import judged, normalised, smeared
from timeoutmgr.pipeline.views import TO_STORE
from timeoutmgr.sender.composer import Composer, SendOptions
from timeoutmgr.transport.envelope import seal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = "2030-01-31T09:00:00Z"
LIMITS = Limits(
    max_body=100,
    max_delay=timedelta(days=4_000),
    allowed_destinations=("billing", "mail.*", "é*", "amq.*", "*.Timeouts", "*\n"),
    refused_destinations=("error", "mail.error*"),
)
GOOD = {"destination": "billing", "due": LATER, "body": "{}", "key": "k", "message_type": "T"}

# A row, and whether an endpoint would accept it.
ROWS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"due": "2030-01-31 09:00:00.123456+01:00"}, True),
    ({"due": "2030-01-31T09:00"}, False),  # no zone
    ({"due": "2030-02-30T09:00:00Z"}, False),  # no such day
    ({"due": "soon"}, False),
    ({"due": "2029-12-31T23:59:59Z"}, False),  # has passed
    ({"due": "2050-01-01T00:00:00Z"}, False),  # beyond max_delay
    ({"due": None}, False),
    ({"due": None, "delay": "60"}, True),
    ({"due": None, "delay": "0.0000001"}, True),
    ({"due": None, "delay": "-1"}, False),
    ({"due": None, "delay": "NaN"}, False),
    ({"due": None, "delay": "Infinity"}, False),
    ({"due": None, "delay": "1e300"}, False),
    ({"due": None, "delay": "a while"}, False),
    ({"due": None, "delay": "30d"}, False),  # 30 to Java
    ({"due": None, "delay": "5F"}, False),
    ({"due": None, "delay": "0x1p3"}, False),
    ({"due": None, "delay": " +1.5e3 "}, True),
    ({"delay": "60"}, False),  # both
    ({"destination": None}, False),
    ({"destination": ""}, False),
    ({"destination": "mail.us"}, True),
    ({"destination": "Billing"}, False),
    ({"destination": "é" * 99}, True),
    ({"destination": "é" * 100}, False),  # 200 bytes
    ({"destination": "amq.direct"}, False),
    ({"destination": "sales.Timeouts"}, False),
    ({"destination": "mail.a\n"}, False),
    ({"destination": "billing\u2028"}, False),
    ({"destination": "mail.error"}, False),
    ({"destination": "mail.u\u202es"}, False),
    ({"destination": "mail.u\x9bs"}, False),
    ({"destination": "mail.\U0001f4a9"}, True),
    ({"key": "x" * 193}, True),
    ({"key": "x" * 194}, False),
    ({"key": "käse"}, False),
    ({"key": "a\tb"}, False),
    ({"key": "a\n"}, False),
    ({"key": None}, True),
    ({"saga_id": "order 7 é"}, True),
    ({"saga_id": "x" * 201}, False),
    ({"saga_id": "a\u00a0b"}, False),
    ({"saga_id": "a\u200bb"}, False),
    ({"saga_id": "a\n"}, False),
    ({"saga_id": "a\0"}, False),
    ({"saga_id": ""}, False),
    ({"body": None}, False),
    ({"body": "x" * 100}, True),
    ({"body": "x" * 101}, False),
    ({"body": "AAEC", "body_encoding": "base64"}, True),
    ({"body": "A!EC", "body_encoding": "base64"}, False),
    ({"body": "AAEC", "body_encoding": "hex"}, False),
    ({"message_type": None}, False),
    ({"message_type": "x" * 70_000}, False),
    ({"message_type": "a\0"}, True),
    ({"content_type": ""}, True),
    ({"content_type": "x" * 255}, True),
    ({"content_type": "x" * 256}, False),
    ({"content_type": "é" * 128}, False),  # 256 bytes
    ({"content_type": "a\0"}, False),
    ({"headers": '{"Tenant": "a\\"b"}'}, True),
    ({"headers": '{"NServiceBus.ConversationId": "c"}'}, True),
    ({"headers": '{"NServiceBus.MessageId": "c"}'}, False),
    ({"headers": '{"x-Death": "c"}'}, False),
    ({"headers": '{"Tenant": null}'}, False),
    ({"headers": '{"Tenant": 7}'}, False),
    ({"headers": '{"Tenant": {"a": "b"}}'}, False),
    ({"headers": "Tenant"}, False),
    ({"headers": json.dumps({"big": "x" * 70_000})}, False),
    ({"headers": json.dumps({"x" * 255: "a\0"})}, True),
    ({"headers": json.dumps({"é" * 128: "a"})}, False),  # 256 bytes
]


def rules(**changed: Any) -> RequestRules:
    given: dict[str, Any] = {"endpoint": "sales", "dataset": "spring", "now": to_micros(NOW)}
    return RequestRules(**(given | {"limits": LIMITS} | changed))


def frame(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    names = sorted({name for row in rows for name in row})
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    return normalised(spark.createDataFrame(table))


def composed(given: dict[str, Any]) -> Message:
    """Return the message that an endpoint would send to its manager for the row."""
    composer = Composer(
        endpoint="sales",
        clearing=Clearing(endpoint="sales"),
        reply_to="sales",
        limits=LIMITS,
        clock=_Clock(),
        new_id=lambda: "",
        timeout_id_of=lambda message_id: timeout_id("sales", message_id),
        delays=lambda outgoing, due: to_timeout_manager(outgoing, due, "sales.Timeouts"),
    )
    raw = given["body"]
    body = base64.b64decode(raw) if given.get("body_encoding") else raw.encode()
    due, delay = given.get("due"), given.get("delay")
    return composer.compose(
        given["destination"],
        given["message_type"],
        body,
        SendOptions(
            deliver_at=datetime.fromisoformat(due) if due else None,
            delay=float(delay) if delay else None,
            message_id=f"spring/{given['key']}",
            saga_id=given.get("saga_id"),
            headers=json.loads(given.get("headers") or "{}"),
            content_type=given.get("content_type") or "application/json",
        ),
    ).outgoing.message


class _Clock:
    def now(self) -> int:
        return to_micros(NOW)

    def monotonic(self) -> float:
        return 0.0


@pytest.mark.usefixtures("compiled")
def test_rows_are_accepted_and_refused_by_the_rules_of_an_endpoint(spark: SparkSession) -> None:
    rows = [GOOD | {"key": f"k{at}"} | changed for at, (changed, _accepted) in enumerate(ROWS)]

    found = judged(frame(spark, rows), rules()).toArrow().to_pylist()

    wrong = [
        (changed, one["reasons"])
        for (changed, accepted), one in zip(ROWS, found, strict=True)
        if (one["reasons"] == []) is not accepted
    ]
    assert wrong == []
    for (_changed, accepted), given, one in zip(ROWS, rows, found, strict=True):
        if accepted and given["key"] is not None:
            _same_as_sent(one, composed(given))
        elif given["due"] and not accepted and given["key"] and "past" not in one["reasons"][0]:
            refusals = (InvalidMessage, MessageRejected, ValueError, TypeError, AttributeError)
            with pytest.raises(refusals):
                _refused_by_the_endpoint(given)


def _same_as_sent(one: dict[str, Any], message: Message) -> None:
    headers = dict(message.headers)
    assert one["due"] == from_micros(to_micros(one["due"]))
    assert headers.pop("NServiceBus.Timeout.RouteExpiredTimeoutTo") == one["destination"]
    assert headers.pop("NServiceBus.Timeout.Expire") == headers["NServiceBus.DeliverAt"]
    assert json.loads(one["headers"]) == headers
    assert one["id"] == timeout_id("sales", one["message_id"])
    assert (one["message_id"], one["body"]) == (message.id, message.body)
    assert one["content_type"] == message.content_type
    assert one["content_encoding"] == message.content_encoding


def _refused_by_the_endpoint(given: dict[str, Any]) -> None:
    message = composed(given)
    seal(message)
    to_row("sales", Timeout(id="i", due=0, destination=given["destination"], message=message))
    # Mistakes of data sets alone: a key that leaves no room, headers near the limit, ….
    if given["due"] < "2030" or given.get("body_encoding") or len(given["key"]) > 193:
        raise ValueError


TO_THE_MICROSECOND = [
    ("2031-02-03T04:05:06.123456789Z", "04:05:06.123457"),
    ("2031-02-03T04:05:06.1234560000Z", "04:05:06.123456"),
    ("2031-02-03T04:05:06.1234567Z", "04:05:06.123457"),
    ("2031-02-03T04:05:06,5Z", "04:05:06.500000"),
    ("2031-02-03T00:00Z", "00:00:00.000000"),
    ("2031-02-03T04Z", "04:00:00.000000"),
    ("2031-02-03 04:05:06+00", "04:05:06.000000"),
    ("2031-02-03T09:05:06+05", "04:05:06.000000"),
    ("2031-02-03T09:35:06+0530", "04:05:06.000000"),
    ("2031-02-02T23:05:06-05:00", "04:05:06.000000"),
    ("20310203T040506.25z", "04:05:06.250000"),
    ("20310203t0405Z", "04:05:00.000000"),
    ("1927857906", "04:05:06.000000"),
    ("1927857906123", "04:05:06.123000"),
    ("1927857906123456", "04:05:06.123456"),
    ("1927857906123456001", "04:05:06.123457"),
]
NO_INSTANTS = [
    *("2031-02-30T04:05:06Z", "2031-02-03T25:00Z", "2031-02-03T04:05:60Z", "2031-02-03"),
    *("2031-02-03T04:05:06+19", "2031-0203T04:05Z", "2031-02-03T0405:06Z", "2031-02-03T04:05:06"),
    # As a count the number is an instant in the year 2612; it may be a date without signs.
    *("20310203040506", "192785790", "-1927857906", "1927857906.5", "9" * 19, ""),
]

WITHOUT_KEY: list[dict[str, Any]] = [{"key": None}, {"key": None, "body": "[]"}, {"key": None}]
CONTENTS: list[dict[str, Any]] = [
    {"headers": '{"a": "1", "b": "2"}'},
    {"headers": '{"b": "2", "a": "1"}', "content_type": "application/json"},
    {"headers": '{"a": "1"}'},
    {},
    *({name: "mail.x"} for name in ("destination", "saga_id", "body", "message_type")),
    {"content_type": "text/plain"},
    {"due": "2030-01-31T09:00:01Z"},
]
WITHOUT_TYPE = [{"message_type": given, "saga_id": "s"} for given in (None, "")]
LONG_PAST = datetime(2020, 1, 1, tzinfo=UTC)

# Changes of GOOD, each of which is a row.
GROUPS: dict[str, list[dict[str, Any]]] = {
    "without a key": WITHOUT_KEY,
    "past": [{"due": LONG_PAST.isoformat()}],
    "contents": CONTENTS,
    "twice": [{"headers": '{"a": "1", "b": "2", "a": "3"}'}],
    "good instants": [{"due": text} for text, _ in TO_THE_MICROSECOND],
    "no instants": [{"due": text} for text in NO_INSTANTS],
    "without a type": WITHOUT_TYPE,
}
Grouped = dict[str, list[dict[str, Any]]]


def grouped(spark: SparkSession, by: RequestRules) -> Grouped:
    """Return the judgements of *by* on all rows of GROUPS, which are judged at once."""
    rows = frame(spark, [GOOD | changed for group in GROUPS.values() for changed in group])
    found = iter(judged(rows, by).toArrow().to_pylist())
    return {name: [next(found) for _ in group] for name, group in GROUPS.items()}


@pytest.fixture(scope="module")
def plain(spark: SparkSession) -> Grouped:
    """The judgements of the rules that most tests have."""
    return grouped(spark, rules())


@pytest.fixture(scope="module")
def shifted(spark: SparkSession) -> Grouped:
    """The judgements of a microsecond later, where what has passed is due now."""
    return grouped(spark, rules(now=to_micros(NOW) + 1, past="shift"))


@pytest.fixture(scope="module")
def dispatched(spark: SparkSession) -> Grouped:
    """The judgements where what has passed is due when it was, and rows have a default type."""
    return grouped(spark, rules(past="dispatch", message_type="Reminder"))


def test_a_row_without_a_key_has_the_same_id_in_every_run(plain: Grouped, shifted: Grouped) -> None:
    first, other, again = (one["id"] for one in plain["without a key"])
    later = shifted["without a key"][0]["id"]

    assert first == again == later != other


def test_a_past_due_time_is_rejected_kept_or_moved_to_now(
    plain: Grouped, shifted: Grouped, dispatched: Grouped
) -> None:
    (rejected,), (kept,), (moved,) = (one["past"] for one in (plain, dispatched, shifted))

    assert rejected["reasons"] == ["due has passed"]
    assert (kept["reasons"], kept["due"]) == ([], LONG_PAST)
    assert (moved["reasons"], moved["due"]) == ([], NOW + timedelta(microseconds=1))


def test_rows_have_the_same_content_if_all_of_it_is_the_same(plain: Grouped) -> None:
    found = [one["content"] for one in plain["contents"]]

    assert found[0] == found[1]
    assert len(set(found)) == len(found) - 1


def test_a_header_that_is_given_twice_is_refused(plain: Grouped) -> None:
    (one,) = plain["twice"]

    assert one["reasons"] == ["a header is given twice"]


def test_texts_of_iso_8601_and_counts_since_1970_are_instants(plain: Grouped) -> None:
    good, bad = plain["good instants"], plain["no instants"]

    assert [one["reasons"] for one in good] == [[]] * len(good)
    shown = [f"{one['due']:%Y-%m-%d %H:%M:%S.%f}" for one in good]
    assert shown == [f"2031-02-03 {time}" for _, time in TO_THE_MICROSECOND]
    wrong = [one["reasons"][0] for one in bad]
    assert [text for text in wrong if not text.startswith(("due is not", "due lies out"))] == []
    assert "of 10, 13, 16 or 19 digits" in wrong[0]


def test_a_row_without_a_message_type_has_that_of_the_data_set(
    plain: Grouped, dispatched: Grouped
) -> None:
    for one, none in zip(dispatched["without a type"], plain["without a type"], strict=True):
        assert one["reasons"] == []
        assert json.loads(one["headers"])["NServiceBus.EnclosedMessageTypes"] == "Reminder"
        assert none["reasons"] == ["no message_type"]


IMPOSSIBLE = "due lies outside the years 1 to 9999"


def test_instants_that_no_calendar_has_are_refused(spark: SparkSession) -> None:
    far_away = 8_000 * 365 * 86_400
    texts: list[dict[str, Any]] = [
        GOOD | {"due": "9999-12-31T23:59:59.999999Z"},
        GOOD | {"due": "9999-12-31T23:59:59-18:00"},
        GOOD | {"due": "0001-01-01T00:00:00Z"},
        GOOD | {"due": "0001-01-01T00:00:00+18:00"},
        GOOD | {"due": None, "delay": str(far_away - 366 * 86_400 * 40)},
        GOOD | {"due": None, "delay": str(far_away)},
    ]
    instants = [EARLIEST - 1, EARLIEST, LATEST, LATEST + 1, 2**63 - 1]
    count = len(instants)
    typed = pa.table(
        {
            "destination": ["billing"] * count,
            "due": pa.array(instants, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "body": ["{}"] * count,
        }
    )
    anything = rules(limits=Limits(), message_type="T", past="dispatch")

    of_texts = judged(frame(spark, texts), anything)
    of_typed = judged(normalised(spark.createDataFrame(typed)), anything)

    # Compare the reasons only: Python cannot represent these instants either.
    both = of_texts.select("reasons").unionAll(of_typed.select("reasons"))
    found = [one["reasons"] for one in both.toArrow().to_pylist()]
    bad = [IMPOSSIBLE]
    assert found[: len(texts)] == [[], bad, [], bad, [], bad]
    assert found[len(texts) :] == [bad, [], [], bad, bad]


TEXTS = ("destination", "saga_id", "message_type", "content_type", "body", "headers")


def test_bytes_that_are_no_text_are_refused_in_every_column(spark: SparkSession) -> None:
    bad = {name: b'{"a": "\xff"}' if name == "headers" else b"a\xff" for name in TEXTS}
    rows = [
        {name: text.encode() for name, text in GOOD.items()} | {name: bad[name]} for name in bad
    ]
    table = pa.table({name: [row.get(name) for row in rows] for name in (*GOOD, *TEXTS)})
    read = spark.createDataFrame(table)
    texts = read.select(*(read[name].cast("string") for name in read.columns))
    a_map = pa.array([[("Tenant", b"\xff")]], pa.map_(pa.string(), pa.binary()))
    typed = pa.table({name: [text] for name, text in GOOD.items()} | {"headers": a_map})

    found = judged(normalised(texts), rules()).select("reasons")
    of_typed = judged(normalised(spark.createDataFrame(typed)), rules()).select("reasons")

    reasons = [one["reasons"] for one in found.unionAll(of_typed).toArrow().to_pylist()]
    expected = [f"{name} is not UTF-8" for name in TEXTS[:-1]] + ["headers are not UTF-8"] * 2
    assert [each for each in zip(expected, reasons, strict=True) if each[0] not in each[1]] == []


def test_typed_columns_are_read_as_they_are(spark: SparkSession) -> None:
    table = pa.table(
        {
            "destination": ["billing"],
            "due": pa.array([NOW + timedelta(days=1)], pa.timestamp("us", tz="UTC")),
            "body": pa.array([{"order": 7}], pa.struct([("order", pa.int64())])),
            "headers": pa.array([[("Tenant", "a")]], pa.map_(pa.string(), pa.string())),
            "key": pa.array([12], pa.int64()),
        }
    )

    found = judged(normalised(spark.createDataFrame(table)), rules(message_type="R"))

    (one,) = found.toArrow().to_pylist()
    assert one["reasons"] == []
    assert (one["message_id"], one["body"]) == ("spring/12", b'{"order":7}')
    assert one["due"] == NOW + timedelta(days=1)
    assert json.loads(one["headers"])["Tenant"] == "a"
    assert found.select(*TO_STORE.names).columns == TO_STORE.names


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"body": ["x"], "due": [LATER]}, "no column 'destination'"),
        ({"body": ["x"], "destination": ["b"]}, "no column 'due' and no column 'delay'"),
        ({"destination": ["b"], "due": [LATER]}, "no column 'body'"),
        ({"destination": ["b"], "due": [7.5], "body": ["x"]}, "is double, expected timestamp or"),
        ({"destination": ["b"], "dew": [LATER], "body": ["x"]}, "'dew' that is not .*--ignore-ex"),
        ({"destination": ["b"], "due": [LATER], "Due": [LATER], "body": ["x"]}, "two columns for"),
    ],
)
def test_a_data_set_without_its_columns_is_refused(
    spark: SparkSession, columns: dict[str, list[Any]], sentence: str
) -> None:
    with pytest.raises(WrongColumns, match=sentence):
        normalised(spark.createDataFrame(pa.table(columns)))


def test_whole_numbers_are_counts_since_1970(spark: SparkSession) -> None:
    seconds, nanos = [1_927_857_906, 7], [1_927_857_906_123_456_001, -1]
    frames = [
        normalised(spark.createDataFrame(pa.table(columns)))
        for columns in (
            {
                **dict.fromkeys(("destination", "body"), ["x"] * len(counts)),
                "due": pa.array(counts, kind),
            }
            for counts, kind in ((seconds, pa.int32()), ([*seconds, *nanos], pa.int64()))
        )
    ]

    short, long = (
        judged(rows, rules(limits=Limits(), message_type="T")).select("due", "reasons")
        for rows in frames
    )

    found = short.unionAll(long).toArrow().to_pylist()
    for good, bad in zip(found[::2], found[1::2], strict=True):
        assert good["reasons"] == []
        assert good["due"].replace(microsecond=0) == datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
        assert "due is not an instant" in bad["reasons"][0]


def test_rows_without_a_key_that_differ_by_a_microsecond_are_two_messages(
    spark: SparkSession,
) -> None:
    due = NOW + timedelta(days=1, milliseconds=7)
    micro = timedelta(microseconds=1)
    columns = {
        "destination": ["billing"] * 4,
        "due": pa.array([due, due + micro, due + 2 * micro, due], pa.timestamp("us", "UTC")),
        "body": ["{}"] * 4,
        "message_type": ["T"] * 4,
    }

    rows = judged(normalised(spark.createDataFrame(pa.table(columns))), rules())
    first, second, third, again = (one["id"] for one in rows.toArrow().to_pylist())

    assert first == again
    assert len({first, second, third}) == 3
    # Rows that were stored under a digest cut to milliseconds are known again.
    text = (
        '{"destination":"billing","message_type":"T","due":"2030-01-02T00:00:00.007Z","body":"{}"}'
    )
    message_id = f"spring/{hashlib.sha256(text.encode()).hexdigest()}"
    assert first == timeout_id("sales", message_id)


def test_a_nested_body_keeps_its_microseconds(spark: SparkSession) -> None:
    at = pa.array([{"at": NOW + timedelta(microseconds=n)} for n in (0, 1)])
    at = at.cast(pa.struct([("at", pa.timestamp("us", "UTC"))]))
    columns = {"destination": ["billing"] * 2, "due": [LATER] * 2, "body": at}

    found = judged(
        normalised(spark.createDataFrame(pa.table(columns))), rules(message_type="T")
    ).toArrow()

    one, other = found.to_pylist()
    assert other["body"] == b'{"at":"2030-01-01T00:00:00.000001Z"}'
    assert one["id"] != other["id"]


def test_columns_are_known_in_upper_case_and_by_the_names_that_are_given(
    spark: SparkSession,
) -> None:
    columns = {"Destination": ["billing"], "Send At`": [LATER], "BODY": ["{}"], "customer": ["x"]}
    rows = spark.createDataFrame(pa.table(columns))
    named = {"due": "send at`"}

    (one,) = normalised(rows, named, ignore_extra=True).toArrow().to_pylist()

    assert (one["destination"], one["due"], one["body"]) == ("billing", LATER, "{}")
    assert one.keys() == {*COLUMNS}
    with pytest.raises(WrongColumns, match=r"'customer' that is not read.*--map KNOWN=COLUMN"):
        normalised(rows, named)
    with pytest.raises(WrongColumns, match="no column 'sent', which --map names for 'due'"):
        normalised(rows, {"due": "sent"}, ignore_extra=True)


def test_a_column_that_another_name_was_given_for_is_an_extra_column(spark: SparkSession) -> None:
    columns = {"destination": ["b"], "due": ["never"], "at": [LATER], "body": ["{}"]}
    rows = spark.createDataFrame(pa.table(columns))

    with pytest.raises(WrongColumns, match="has a column 'due' that is not read"):
        normalised(rows, {"due": "at"})
    found = normalised(rows, {"due": "at"}, ignore_extra=True)

    assert found.select("due").toArrow().to_pylist() == [{"due": LATER}]


def test_times_without_a_zone_are_refused_as_a_whole(spark: SparkSession) -> None:
    rows = spark.createDataFrame(pa.table({"destination": ["b"], "due": [NOW], "body": ["x"]}))

    with pytest.raises(WrongColumns, match="times without a zone"):
        normalised(rows.withColumn("due", rows["due"].cast("timestamp_ntz")))


def test_hot_seconds_are_smeared_later_and_never_earlier(spark: SparkSession) -> None:
    rows = [GOOD | {"key": f"k{n}"} for n in range(200)]
    rows.append(GOOD | {"key": "cool", "due": "2030-03-01T00:00:00Z"})
    found = judged(frame(spark, rows), rules())
    hot = spark.createDataFrame(
        pa.table(
            {"second": pa.array([datetime(2030, 1, 31, 9, tzinfo=UTC)], pa.timestamp("us", "UTC"))}
        )
    )

    # That every run smears alike is shown by runs of the job, in test_schedule.py.
    one = smeared(found, hot, timedelta(seconds=30)).toArrow().to_pylist()

    due = datetime(2030, 1, 31, 9, tzinfo=UTC)
    by_key = {each["message_id"]: each for each in one}
    later = [each["due"] - due for key, each in by_key.items() if key != "spring/cool"]
    assert min(later) >= timedelta(0)
    assert max(later) < timedelta(seconds=30)
    assert len({each // timedelta(seconds=1) for each in later}) > 20
    assert by_key["spring/cool"]["due"] == datetime(2030, 3, 1, tzinfo=UTC)
    for each in one:
        shown = json.loads(each["headers"])["NServiceBus.DeliverAt"]
        assert shown == each["due"].strftime("%Y-%m-%d %H:%M:%S:%f Z")


def test_no_row_is_smeared_past_the_end_of_time(spark: SparkSession) -> None:
    rows = [GOOD | {"key": f"k{n}", "due": "9999-12-31T23:59:59Z"} for n in range(20)]
    found = judged(frame(spark, rows), rules(limits=Limits()))
    hot = found.select(f.date_trunc("second", "due").alias("second")).distinct()

    dues = smeared(found, hot, timedelta(days=1)).select("due").toArrow().to_pylist()

    assert {one["due"] for one in dues} == {from_micros(LATEST)}


@pytest.mark.parametrize(
    "changed", [{"past": "keep"}, {"dataset": ""}, {"dataset": "ä"}, {"dataset": "a/b"}]
)
def test_wrong_rules_are_refused(changed: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(changed))):
        rules(**changed)
