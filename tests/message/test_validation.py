from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from freezegun import freeze_time
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import START
from tests.support.nested import NESTED
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import (
    ConfigurationError,
    DestinationNotAllowed,
    InvalidMessage,
    MessageTooLarge,
)
from timeoutmgr.message import headers
from timeoutmgr.message.instants import LATEST, to_micros
from timeoutmgr.message.validation import (
    SATELLITES,
    Limits,
    check_ahead,
    check_body,
    check_destination,
    check_headers,
    check_id,
    check_no_expiry,
    decode_body,
    due_of,
    encode_body,
    is_allowed,
)

ANY = Limits()

# --- destinations


@pytest.mark.parametrize(
    "name", ["billing", "a", "x" * 199, "ü" * 99, "Sales.Timeouts.Other", "é b"]
)
def test_a_printable_name_of_up_to_199_bytes_is_a_destination(name: str) -> None:
    check_destination(name, ANY)


@pytest.mark.parametrize(
    "name",
    ["", None, 7, "x" * 200, "ü" * 100, "a\nb", "a\0", "\ud800", "amq.direct"],
)
def test_text_that_is_not_a_queue_name_is_refused_as_destination(name: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"destination"):
        check_destination(name, ANY)


@pytest.mark.parametrize("name", ["sales.Timeouts", "sales.TimeoutsDispatcher"])
def test_a_satellites_queue_is_no_destination(name: str) -> None:
    with pytest.raises(InvalidMessage, match="timeout manager"):
        check_destination(name, ANY)


def test_a_queue_that_is_only_named_like_a_satellites_is_a_destination() -> None:
    asked: list[str] = []

    def is_satellite(name: str) -> bool:
        asked.append(name)
        return name.startswith("a.")

    limits = Limits().of_endpoint("sales", "error", is_satellite)

    assert is_allowed("b.timeouts", limits)
    with pytest.raises(DestinationNotAllowed, match="timeout manager"):
        check_destination("a.timeouts", limits)
    check_destination("a.timeout", limits)
    assert asked == ["b.timeouts", "a.timeouts"]


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("billing", True),
        ("billing-eu", True),
        ("Billing", False),
        ("shop.eu", True),
        ("shop", False),
    ],
)
def test_the_allow_list_is_of_case_sensitive_shell_patterns(name: str, allowed: bool) -> None:
    limits = Limits(allowed_destinations=("billing*", "shop.*"))

    if allowed:
        check_destination(name, limits)
    else:
        with pytest.raises(InvalidMessage, match="outside allowed_destinations"):
            check_destination(name, limits)


def test_a_refused_destination_stays_refused_on_every_allow_list() -> None:
    limits = Limits(allowed_destinations=("*",), refused_destinations=("secret.*",))

    check_destination("billing", limits)
    with pytest.raises(DestinationNotAllowed, match="in refused_destinations"):
        check_destination("secret.billing", limits)


def test_an_endpoint_may_send_to_itself_and_not_to_its_error_queue() -> None:
    limits = Limits(allowed_destinations=("billing",)).of_endpoint("sales[1]", "errors?")

    for name in ("billing", "sales[1]"):
        check_destination(name, limits)
    assert [is_allowed(name, limits) for name in ("sales1", "errors?", "errors1")] == [False] * 3
    opened = Limits().of_endpoint("sales", "errors?")
    assert (is_allowed("errors?", opened), is_allowed("errors1", opened)) == (False, True)


@pytest.mark.parametrize("satellite", SATELLITES)
def test_a_message_may_return_to_a_satellite_of_its_own_endpoint_alone(satellite: str) -> None:
    check_destination(f"sales{satellite}", Limits(), back_to="sales")

    for name in (f"billing{satellite}", f"sales.eu{satellite}", f"sales{satellite}{satellite}"):
        with pytest.raises(DestinationNotAllowed):
            check_destination(name, Limits(), back_to="sales")


@pytest.mark.parametrize(
    "sign",
    [
        "\x00",
        "\x1f",
        "\x7f",
        "\x9b",
        "\xad",
        "\u061c",
        "\u200b",
        "\u200f",
        "\u2028",
        "\u202e",
        "\u2066",
        "\u2069",
        "\ufeff",
        "\ud800",
    ],
    ids=ascii,
)
def test_a_sign_that_is_not_seen_is_no_part_of_a_destination(sign: str) -> None:
    with pytest.raises(InvalidMessage, match="invisible"):
        check_destination(f"bil{sign}ling", Limits())


def test_a_long_allow_list_is_matched_once_for_each_destination() -> None:
    limits = Limits(allowed_destinations=(*(f"shop{n}.*" for n in range(5_000)), "billing"))
    matched = []
    patterns = limits.destinations
    last = patterns._allowed[-1]

    class Watched:
        def match(self, name: str) -> object:
            matched.append(name)
            return last.match(name)

    object.__setattr__(patterns, "_allowed", (*patterns._allowed[:-1], Watched()))
    for _ in range(1_000):
        check_destination("billing", limits)

    assert matched == ["billing"]


# --- headers and bodies


@pytest.mark.behaviour(21)
def test_headers_may_be_of_any_script() -> None:
    check_headers({"schlüssel-🔑": "wert-🎉\n\t'\"\\"}, ANY)


@pytest.mark.parametrize(
    "given_headers", [{"a": 1}, {"a": None}, {"a": b"x"}, {1: "x"}, {"a": NESTED}]
)
def test_a_header_that_is_no_string_is_refused(given_headers: Any) -> None:
    with pytest.raises(InvalidMessage, match="names and values are strings"):
        check_headers(given_headers, ANY)


@pytest.mark.parametrize("given_headers", [{"a": "\ud800"}, {"\udfff": "a"}])
def test_a_header_that_has_no_utf8_form_is_refused(given_headers: dict[str, str]) -> None:
    with pytest.raises(InvalidMessage, match="UTF-8"):
        check_headers(given_headers, ANY)


@pytest.mark.behaviour(35)
@pytest.mark.parametrize(("size", "fits"), [(99, True), (100, True), (101, False)])
def test_headers_are_measured_in_bytes_of_names_and_values(size: int, fits: bool) -> None:
    limits = Limits(max_headers=100)
    headers_of_size = {"ü": "x" * (size - 2)}

    if fits:
        check_headers(headers_of_size, limits)
    else:
        with pytest.raises(MessageTooLarge) as refused:
            check_headers(headers_of_size, limits)
        assert (refused.value.size, refused.value.limit) == (101, 100)


@pytest.mark.behaviour(35)
@pytest.mark.parametrize(("size", "fits"), [(0, True), (1024, True), (1025, False)])
def test_a_body_over_the_limit_is_refused_and_not_cut(size: int, fits: bool) -> None:
    limits = Limits(max_body=1024)

    if fits:
        check_body(bytes(size), limits)
    else:
        with pytest.raises(MessageTooLarge, match="body has 1025 bytes, the limit is 1024"):
            check_body(bytes(size), limits)


def test_the_default_limits_are_16_mib_of_body_and_64_kib_of_headers() -> None:
    assert (ANY.max_body, ANY.max_headers) == (16 * 1024 * 1024, 64 * 1024)


@pytest.mark.parametrize(
    "wrong", [{"max_body": 0}, {"max_headers": -1}, {"max_delay": timedelta(0)}]
)
def test_limits_that_let_nothing_through_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="positive"):
        Limits(**wrong)


def test_a_pattern_given_as_text_is_not_read_as_a_list_of_characters() -> None:
    with pytest.raises(ConfigurationError, match="list"):
        Limits(allowed_destinations="billing")  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("message_id", ["a", "x" * 200, "3f2504e0-4f89-11d3-9a0c-0305e82c3301"])
def test_printable_ascii_of_up_to_200_characters_is_a_message_id(message_id: str) -> None:
    check_id(message_id)


@pytest.mark.parametrize("message_id", ["", "x" * 201, "ü", "a\n", None, 5, "\0"])
def test_an_id_that_some_store_cannot_keep_is_refused(message_id: Any) -> None:
    with pytest.raises(InvalidMessage, match="message id"):
        check_id(message_id)


@pytest.mark.behaviour(13)
def test_a_delayed_message_with_a_time_to_be_received_is_refused_by_its_type() -> None:
    given_headers = {
        headers.TIME_TO_BE_RECEIVED: "00:00:10",
        headers.ENCLOSED_MESSAGE_TYPES: "Reminder",
    }

    with pytest.raises(InvalidMessage, match="postpone messages of type 'Reminder'"):
        check_no_expiry(given_headers)


@pytest.mark.parametrize(
    "body", [float("nan"), float("inf"), {"a": float("-inf")}, object(), "\ud800"]
)
def test_a_body_that_json_cannot_say_is_refused(body: object) -> None:
    with pytest.raises(InvalidMessage, match="JSON"):
        encode_body(body)


def test_a_body_that_contains_itself_is_refused() -> None:
    body: list[object] = []
    body.append(body)

    with pytest.raises(InvalidMessage, match="JSON"):
        encode_body(body)


@pytest.mark.parametrize("body", [b"\xff\x00", bytearray(b"ab"), memoryview(b"ab")])
def test_bytes_are_sent_as_they_are(body: bytes | bytearray | memoryview) -> None:
    assert encode_body(body) == (bytes(body), "application/octet-stream")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner)
        ),
    )
)
def test_a_plain_value_survives_encoding_and_decoding(value: object) -> None:
    assert decode_body(*encode_body(value)) == value


@pytest.mark.parametrize(
    ("body", "content_type", "decoded"),
    [
        (b'{"a":1}', "application/json", {"a": 1}),
        (b'{"a":1}', "Application/JSON; charset=utf-8", {"a": 1}),
        (b"", "application/json", None),
        (b"<a/>", "text/xml", b"<a/>"),
        (b"\xff", "application/octet-stream", b"\xff"),
    ],
)
def test_only_json_is_decoded(body: bytes, content_type: str, decoded: object) -> None:
    assert decode_body(body, content_type) == decoded


def test_hostile_nesting_raises_instead_of_ending_the_process() -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode_body(b"[" * 1_000_000, "application/json")


# --- due times


def test_neither_delay_nor_instant_is_no_delay() -> None:
    assert due_of(None, None, START) is None


@pytest.mark.behaviour(9)
def test_delay_and_instant_exclude_each_other() -> None:
    with pytest.raises(InvalidMessage, match="exclude each other"):
        due_of(0, datetime(2031, 1, 1, tzinfo=UTC), START)


@pytest.mark.behaviour(8)
@pytest.mark.parametrize(
    "delay", [-1, -0.000001, timedelta(microseconds=-1), timedelta.min, -(10**30)]
)
def test_a_negative_delay_is_refused(delay: timedelta | float) -> None:
    with pytest.raises(InvalidMessage, match="never negative"):
        due_of(delay, None, START)


@pytest.mark.parametrize(("sign", "shown"), [(1, r"beyond 1e\+30"), (-1, r"beyond -1e\+30")])
def test_a_delay_that_python_does_not_write_out_is_refused_all_the_same(
    sign: int, shown: str
) -> None:
    with pytest.raises(InvalidMessage, match=shown):
        due_of(sign * 10**5000, None, START)


def test_a_negative_delay_is_named_in_seconds() -> None:
    with pytest.raises(InvalidMessage, match="got -5 s; use 0 for at once"):
        due_of(timedelta(seconds=-5), None, START)


@pytest.mark.behaviour(8)
@pytest.mark.parametrize("delay", [0, 0.0, -0.0, timedelta(0)])
def test_a_delay_of_nothing_is_due_at_once(delay: timedelta | float) -> None:
    assert due_of(delay, None, START) == START


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), float("-inf")])
def test_a_delay_that_is_no_finite_number_is_refused(delay: float) -> None:
    with pytest.raises(InvalidMessage, match="finite"):
        due_of(delay, None, START)


@pytest.mark.parametrize("delay", ["5", True, [], 1j])
def test_a_delay_that_is_no_duration_is_refused(delay: Any) -> None:
    with pytest.raises(InvalidMessage, match="timedelta or seconds"):
        due_of(delay, None, START)


@pytest.mark.behaviour(52)
@pytest.mark.parametrize(
    "delay",
    [timedelta.max, 1e12, 1e300, 10**12, 1e305, 10**400],
    ids=["timedelta.max", "1e12", "1e300", "int 1e12", "1e305 overflows a float", "int 10**400"],
)
def test_a_delay_past_the_year_9999_is_refused_at_the_door(delay: timedelta | float) -> None:
    with pytest.raises(InvalidMessage):
        due_of(delay, None, START)


@pytest.mark.behaviour(52)
def test_an_instant_whose_utc_lies_past_the_year_9999_is_refused_at_the_door() -> None:
    at = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))

    with pytest.raises(InvalidMessage, match="9999"):
        due_of(None, at, START)


def test_an_instant_whose_utc_lies_before_the_year_1_is_refused_at_the_door() -> None:
    at = datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))

    with pytest.raises(InvalidMessage, match="years"):
        due_of(None, at, START)


def test_the_last_microsecond_of_the_year_9999_is_accepted() -> None:
    assert due_of(None, datetime.max.replace(tzinfo=UTC), START) == LATEST


@pytest.mark.behaviour(15)
def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="no time zone"):
        due_of(None, datetime(2031, 1, 1), START)


@pytest.mark.parametrize("at", ["2031-01-01", 5, timedelta(1)])
def test_an_instant_that_is_no_datetime_is_refused(at: Any) -> None:
    with pytest.raises(InvalidMessage, match="aware datetime"):
        due_of(None, at, START)


@pytest.mark.behaviour(19)
def test_an_instant_in_the_past_is_legal_and_kept() -> None:
    at = datetime(1999, 1, 1, tzinfo=UTC)

    assert due_of(None, at, START) == to_micros(at)


@pytest.mark.behaviour(19, 26)
@given(st.floats(min_value=0, max_value=1e9))
def test_a_delay_in_seconds_is_never_cut_and_grows_by_less_than_two_microseconds(
    seconds: float,
) -> None:
    due = due_of(seconds, None, START)

    assert due is not None
    nearest = timedelta(seconds=seconds) // timedelta(microseconds=1)
    assert nearest <= due - START <= nearest + 1


@pytest.mark.behaviour(26)
@pytest.mark.parametrize(("seconds", "micros"), [(1e-7, 1), (0.0000015, 2), (1.0000001, 1_000_001)])
def test_a_part_of_a_microsecond_counts_as_a_whole_microsecond(seconds: float, micros: int) -> None:
    assert due_of(seconds, None, START) == START + micros


@pytest.mark.behaviour(19)
def test_a_delay_is_added_to_the_senders_clock() -> None:
    with freeze_time("2030-06-01 12:00:00"):
        due = due_of(timedelta(minutes=5), None, SystemClock().now())

    assert due == to_micros(datetime(2030, 6, 1, 12, 5, tzinfo=UTC))


@pytest.mark.parametrize(("seconds", "fits"), [(59, True), (60, True), (60.000001, False)])
def test_a_due_time_may_be_as_far_ahead_as_max_delay(seconds: float, fits: bool) -> None:
    limits = Limits(max_delay=timedelta(minutes=1))
    due = START + round(seconds * 1_000_000)

    if fits:
        check_ahead(due, START, limits)
    else:
        with pytest.raises(InvalidMessage, match="max_delay"):
            check_ahead(due, START, limits)


def test_encoded_json_keeps_its_unicode() -> None:
    body, _ = encode_body({"name": "Zoë 🎉"})

    assert json.loads(body) == {"name": "Zoë 🎉"}
    assert "Zoë".encode() in body
