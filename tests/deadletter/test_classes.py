"""Numbers that other products read: classes, journaling levels and acknowledgement levels."""

from __future__ import annotations

import pytest

from timeoutmgr.contracts.dead_letters import (
    ORDER_ACK,
    AcknowledgeLevel,
    JournalLevel,
    MessageClass,
    is_http,
    is_negative,
    is_receive,
    is_well_formed,
)

NUMBERS = {
    "NORMAL": 0x0000,
    "REPORT": 0x0001,
    "ACK_REACH_QUEUE": 0x0002,
    "ACK_RECEIVE": 0x4000,
    "NACK_BAD_DST_Q": 32768,
    "NACK_PURGED": 32769,
    "NACK_REACH_QUEUE_TIMEOUT": 32770,
    "NACK_Q_EXCEED_QUOTA": 32771,
    "NACK_ACCESS_DENIED": 32772,
    "NACK_HOP_COUNT_EXCEEDED": 32773,
    "NACK_BAD_SIGNATURE": 32774,
    "NACK_BAD_ENCRYPTION": 32775,
    "NACK_COULD_NOT_ENCRYPT": 32776,
    "NACK_NOT_TRANSACTIONAL_Q": 32777,
    "NACK_NOT_TRANSACTIONAL_MSG": 32778,
    "NACK_UNSUPPORTED_CRYPTO_PROVIDER": 32779,
    "NACK_SOURCE_COMPUTER_GUID_CHANGED": 32780,
    "NACK_Q_DELETED": 49152,
    "NACK_Q_PURGED": 49153,
    "NACK_RECEIVE_TIMEOUT": 49154,
    "NACK_RECEIVE_TIMEOUT_AT_SENDER": 49155,
    "NACK_RECEIVE_REJECTED": 49156,
}


@pytest.mark.behaviour(104)
def test_the_22_message_classes_have_msmqs_numbers() -> None:
    assert {each.name: each.value for each in MessageClass} == NUMBERS
    assert len(MessageClass) == 22


@pytest.mark.parametrize("each", MessageClass)
def test_the_name_of_a_class_tells_its_bits(each: MessageClass) -> None:
    assert each.is_negative is each.name.startswith("NACK")
    assert is_well_formed(each)
    assert not is_http(each)


def test_the_receive_stage_is_one_bit() -> None:
    received = {each.name for each in MessageClass if each.is_receive}

    assert received == {name for name, number in NUMBERS.items() if number & 0x4000}


@pytest.mark.parametrize(
    ("code", "holds"),
    [
        *((-1, False), (0x10000, False), (0x0100, False), (0x1000, False), (0x80FF, True)),
        *((0x2000 | 404, True), (0xE194, True), (ORDER_ACK, True), (0x0F00, False)),
    ],
)
def test_a_code_is_well_formed_where_only_known_bits_are_set(code: int, holds: bool) -> None:
    assert is_well_formed(code) is holds


def test_journaling_levels_are_bits() -> None:
    assert JournalLevel.DEADLETTER | JournalLevel.JOURNAL is JournalLevel.BOTH
    assert [int(level) for level in (JournalLevel.NONE, JournalLevel.BOTH)] == [0, 3]


def test_acknowledgement_levels_are_sums_of_their_parts() -> None:
    level = AcknowledgeLevel

    assert level.FULL_REACH_QUEUE == level.POS_ARRIVAL | level.NEG_ARRIVAL == 5
    assert level.NACK_RECEIVE == level.NEG_ARRIVAL | level.NEG_RECEIVE == 12
    assert level.FULL_RECEIVE == level.NACK_RECEIVE | level.POS_RECEIVE == 14
    assert int(level.NACK_REACH_QUEUE) == int(level.NEG_ARRIVAL) == 4


@pytest.mark.parametrize(
    ("level", "hears_of"),
    [
        (AcknowledgeLevel.NONE, ()),
        (AcknowledgeLevel.POS_ARRIVAL, (0x0002,)),
        (AcknowledgeLevel.POS_RECEIVE, (0x4000,)),
        (AcknowledgeLevel.NACK_REACH_QUEUE, (0x8000,)),
        (AcknowledgeLevel.FULL_REACH_QUEUE, (0x0002, 0x8000)),
        (AcknowledgeLevel.NEG_RECEIVE, (0xC002,)),
        (AcknowledgeLevel.NACK_RECEIVE, (0x8000, 0xC002)),
        (AcknowledgeLevel.FULL_RECEIVE, (0x4000, 0x8000, 0xC002)),
    ],
)
def test_a_level_asks_for_its_acknowledgements(
    level: AcknowledgeLevel, hears_of: tuple[int, ...]
) -> None:
    kinds = (0x0000, 0x0001, 0x0002, ORDER_ACK, 0x4000, 0x8000, 0xC002)

    assert tuple(code for code in kinds if level.asks_for(code)) == hears_of


def test_the_predicates_read_plain_numbers_too() -> None:
    assert is_negative(0xC001)
    assert is_receive(0xC001)
    assert not is_negative(0x4000)
