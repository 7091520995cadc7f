"""Who decides that a message gets a dead letter or a journal copy, and what it says of itself."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeoutmgr.contracts.dead_letters import AcknowledgeLevel, JournalLevel, MessageClass
from timeoutmgr.deadletter import delivery_headers as marks
from timeoutmgr.deadletter.delivery_headers import (
    DeliveryHeaders,
    one_hop_more,
    read_headers,
)
from timeoutmgr.deadletter.service import AcceptedMessages, JournalingRules
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_timespan

NONE, DEAD, JOURNAL, BOTH = map(JournalLevel, range(4))


@pytest.mark.behaviour(100)
@pytest.mark.parametrize(
    ("rules", "own", "expires", "transactional", "level"),
    [
        (JournalingRules(), None, False, False, DEAD),
        (JournalingRules(), None, True, False, NONE),
        (JournalingRules(dead_letter_when_expiring=True), None, True, False, DEAD),
        (JournalingRules(dead_letter=False), None, False, False, NONE),
        (JournalingRules(dead_letter=False), DEAD, False, False, DEAD),
        (JournalingRules(), NONE, False, False, NONE),
        (JournalingRules(), DEAD, True, False, DEAD),
        (JournalingRules(journal=True), None, False, False, BOTH),
        (JournalingRules(journal=True), None, True, False, JOURNAL),
        (JournalingRules(journal=True), DEAD, False, False, DEAD),
        (JournalingRules(), NONE, False, True, NONE),
        (JournalingRules(all_transactional=True), NONE, False, True, DEAD),
        (JournalingRules(all_transactional=True), JOURNAL, True, True, BOTH),
        (JournalingRules(all_transactional=True), NONE, False, False, NONE),
    ],
)
def test_the_endpoint_asks_for_dead_letters_and_the_messages_own_level_wins(
    rules: JournalingRules,
    own: JournalLevel | None,
    expires: bool,
    transactional: bool,
    level: JournalLevel,
) -> None:
    assert rules.level(own, expires=expires, transactional=transactional) is level


def test_a_message_built_without_the_options_has_level_none() -> None:
    assert read_headers({}) == DeliveryHeaders()
    assert read_headers({}).journal is NONE


@given(
    st.builds(
        DeliveryHeaders,
        journal=st.sampled_from([NONE, DEAD, JOURNAL, BOTH]),
        transactional=st.booleans(),
        time_to_reach_queue=st.timedeltas(timedelta(0), timedelta(days=9)),
        hops=st.integers(0, 20),
        acknowledge=st.sampled_from([AcknowledgeLevel(n) for n in range(16)]),
        admin_queue=st.none() | st.just("admin"),
        source_node=st.none() | st.just("n1"),
        source_guid=st.none() | st.just("g"),
        source_queue=st.none() | st.just("sales"),
        dead_letter_queue=st.none() | st.just("sales.dead"),
    )
)
def test_levels_of_a_message_survive_its_headers(given_marks: DeliveryHeaders) -> None:
    assert read_headers(given_marks.as_headers()) == given_marks


def test_the_time_to_be_received_uses_the_header_of_other_products() -> None:
    limit = timedelta(minutes=2)

    found = read_headers({headers.TIME_TO_BE_RECEIVED: to_timespan(limit)})

    assert found.timers.be_received == limit


def test_the_longest_time_to_reach_a_queue_is_no_unreadable_time() -> None:
    given_headers = DeliveryHeaders(time_to_reach_queue=timedelta.max).as_headers()

    assert read_headers(given_headers).time_to_reach_queue > timedelta(days=29_000 * 365)


@pytest.mark.parametrize("nonsense", ["", "-1", "four", "99", "٣", "1" * 30, "1.5"])
def test_nonsense_in_a_header_counts_as_not_said(nonsense: str) -> None:
    given_headers = dict.fromkeys(
        [marks.JOURNAL, marks.ACKNOWLEDGE, marks.TIME_TO_REACH_QUEUE, headers.TIME_SENT], nonsense
    )

    assert read_headers(given_headers) == DeliveryHeaders()


def test_after_fifteen_hops_a_message_is_passed_on_no_more() -> None:
    passed: dict[str, str] = {}
    for _ in range(15):
        passed = one_hop_more(passed)

    assert read_headers(passed).hops == 15
    assert read_headers(passed).has_hops_left
    assert not read_headers(one_hop_more(passed)).has_hops_left


@pytest.mark.parametrize(
    ("level", "transactional", "waits"),
    [(NONE, True, False), (DEAD, True, True), (JOURNAL, True, True), (BOTH, False, False)],
)
def test_only_a_transactional_message_with_a_level_is_kept_by_its_source(
    level: JournalLevel, transactional: bool, waits: bool
) -> None:
    made = DeliveryHeaders(journal=level, transactional=transactional)

    assert made.awaits_final_acknowledgement is waits


@pytest.mark.parametrize(
    ("takes", "transactional", "dies_of"),
    [
        (AcceptedMessages.BOTH, True, None),
        (AcceptedMessages.BOTH, False, None),
        (AcceptedMessages.TRANSACTIONAL, True, None),
        (AcceptedMessages.TRANSACTIONAL, False, MessageClass.NACK_NOT_TRANSACTIONAL_MSG),
        (AcceptedMessages.NONTRANSACTIONAL, True, MessageClass.NACK_NOT_TRANSACTIONAL_Q),
        (AcceptedMessages.NONTRANSACTIONAL, False, None),
    ],
)
def test_a_queue_may_be_for_one_kind_of_message(
    takes: AcceptedMessages, transactional: bool, dies_of: MessageClass | None
) -> None:
    assert takes.refuses(transactional=transactional) is dies_of
