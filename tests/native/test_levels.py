from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.fleet import held_by
from tests.support.clock import START
from timeoutmgr.errors import DelayTooLong, InvalidMessage
from timeoutmgr.native.levels import (
    LEVELS,
    MAX_DELAY,
    MAX_SECONDS,
    binding_key,
    check_destination,
    enter_key,
    parts_until,
    pass_key,
    read_routing_key,
    routing_key,
    start_level,
)

SECONDS = st.integers(0, MAX_SECONDS)
NAMES = st.text(
    st.characters(codec="utf-8") | st.sampled_from(".*#01"), min_size=1, max_size=45
).filter(lambda name: {"*", "#"}.isdisjoint(name.split(".")))


def bits(text: str) -> str:
    return ".".join(text.replace(" ", "").rjust(LEVELS, "0"))


# --- from a delay to its key ------------------------------------------------------------------


@pytest.mark.behaviour(106, 109)
@pytest.mark.parametrize(
    ("seconds", "key", "level"),
    [
        (0, bits("0"), 0),
        (1, bits("1"), 0),
        (2, bits("10"), 1),
        (3, bits("11"), 1),
        (5, bits("101"), 2),
        (10, bits("1010"), 3),
        (15, bits("1111"), 3),
        (28, bits("11100"), 4),
        (0b1000001_0000011_0000111_0001111, bits("1000001000001100001110001111"), 27),
        (MAX_SECONDS - 1, bits("1" * 27 + "0"), 27),
        (MAX_SECONDS, bits("1" * 28), 27),
        (-123, bits("0"), 0),
    ],
)
def test_the_key_spells_the_delay_and_its_highest_bit_is_the_first_level(
    seconds: int, key: str, level: int
) -> None:
    assert routing_key(seconds, "billing") == f"{key}.billing"
    assert start_level(seconds) == level


def test_five_seconds_are_spent_in_levels_two_and_zero() -> None:
    assert held_by(5) == [2, 0]


@given(SECONDS)
def test_the_levels_of_a_message_add_up_to_its_delay(seconds: int) -> None:
    held = held_by(seconds)

    assert sum(2**level for level in held) == seconds
    assert start_level(seconds) == (held[0] if held else 0)


@given(SECONDS, NAMES)
def test_a_key_is_read_back_as_it_was_written(seconds: int, name: str) -> None:
    assert read_routing_key(routing_key(seconds, name)) == (seconds, name)


@pytest.mark.behaviour(106)
@pytest.mark.parametrize(
    "key", ["", "billing", bits("101"), f"{bits('101')}.", f"{bits('2')}.billing"]
)
def test_a_foreign_key_is_not_read_as_a_key_of_the_levels(key: str) -> None:
    assert read_routing_key(key) is None


# --- how long ---------------------------------------------------------------------------------


@pytest.mark.behaviour(108)
@pytest.mark.parametrize(
    ("micros", "seconds"),
    [(-1, 0), (0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (4_500_000, 5)],
)
def test_whole_seconds_are_rounded_up(micros: int, seconds: int) -> None:
    assert parts_until(START + micros, START, 1) == seconds


@given(st.integers(0, MAX_SECONDS * 1_000_000))
def test_never_early_and_less_than_a_second_late(micros: int) -> None:
    assert 0 <= parts_until(START + micros, START, 1) * 1_000_000 - micros < 1_000_000


@pytest.mark.behaviour(107)
def test_the_longest_delay_is_let_in_and_a_microsecond_more_is_not() -> None:
    due = START + MAX_SECONDS * 1_000_000

    assert parts_until(due, START, 1) == 268_435_455
    with pytest.raises(DelayTooLong, match="fallback_to_store") as refused:
        parts_until(due + 1, START, 1)
    assert refused.value.delay == MAX_DELAY + timedelta(microseconds=1)


@pytest.mark.behaviour(107)
def test_two_to_the_28_seconds_are_refused_and_not_shifted() -> None:
    with pytest.raises(DelayTooLong):
        routing_key(2**28, "billing")
    with pytest.raises(DelayTooLong):
        start_level(2**28)


# --- names ------------------------------------------------------------------------------------


@pytest.mark.behaviour(112)
@pytest.mark.parametrize("name", ["*", "#", "eu.*.sales", "sales.#", "#.sales"])
def test_a_name_with_a_wildcard_for_a_word_is_refused(name: str) -> None:
    with pytest.raises(InvalidMessage, match="messages for other queues"):
        binding_key(name)


@pytest.mark.behaviour(112)
@pytest.mark.parametrize("name", ["eu.sales", "a..b", ".a", "sales*", "c#", "Zürich.🚚"])
def test_dots_and_stars_within_words_are_names_like_any_other(name: str) -> None:
    assert binding_key(name) == "*." * 28 + name


@pytest.mark.behaviour(106, 112)
def test_a_name_has_1_to_199_bytes() -> None:
    longest = "é" * 99 + "x"

    assert len(routing_key(MAX_SECONDS, longest).encode()) == 255
    assert len(binding_key(longest).encode()) == 255
    with pytest.raises(InvalidMessage, match="200 bytes of UTF-8"):
        check_destination(longest + "x")
    with pytest.raises(InvalidMessage, match="empty"):
        check_destination("")


# --- the routes of a topic exchange for the keys -----------------------------------------------


def matches(binding: str, key: str) -> bool:
    """Return whether a topic exchange routes *key* by *binding* (AMQP 0-9-1, 3.1.3.3)."""

    def step(pattern: list[str], words: list[str]) -> bool:
        if not pattern:
            return not words
        if pattern[0] == "#":
            return any(step(pattern[1:], words[n:]) for n in range(len(words) + 1))
        return bool(words) and pattern[0] in ("*", words[0]) and step(pattern[1:], words[1:])

    return step(binding.split("."), key.split("."))


@given(SECONDS, NAMES, st.integers(0, LEVELS - 1))
def test_each_level_takes_its_own_bit_and_passes_the_other_on(
    seconds: int, name: str, level: int
) -> None:
    key = routing_key(seconds, name)
    bit = seconds >> level & 1

    assert matches(pass_key(level, bit), key)
    assert not matches(pass_key(level, 1 - bit), key)


@given(SECONDS, NAMES)
def test_exactly_one_way_leads_in_and_it_is_that_of_the_highest_bit(
    seconds: int, name: str
) -> None:
    key = routing_key(seconds, name)
    ways = [level for level in (None, *range(LEVELS)) if matches(enter_key(level), key)]

    assert ways == [start_level(seconds) if seconds else None]


@pytest.mark.behaviour(111)
@given(SECONDS, NAMES, NAMES)
def test_a_binding_matches_its_own_destination_and_no_other(
    seconds: int, name: str, other: str
) -> None:
    key = routing_key(seconds, name)

    assert matches(binding_key(name), key)
    assert matches(binding_key(other), key) == (name == other)
    assert not matches(binding_key(name), routing_key(seconds, f"eu.{name}"))
