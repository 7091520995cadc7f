"""Each known nasty message comes to its end, and stops no other."""

from __future__ import annotations

import pytest

from tests.fuzz.conftest import Fuzzed
from tests.fuzz.corpus import CASES, UNSENDABLE, Case
from tests.fuzz.letters import RawMessage
from tests.fuzz.ways import RAW_HEADERS
from timeoutmgr.message.routes import DISPATCHER, TIMEOUTS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_nasty_message_is_kept_or_carried_out(
    after_the_corpus: tuple[str, Fuzzed], case: Case
) -> None:
    transport, fuzzed = after_the_corpus
    if transport in case.transports:  # else it cannot be written there
        fuzzed.account.check_one(case.raw)


def test_the_satellites_live_after_all_of_it(after_the_corpus: tuple[str, Fuzzed]) -> None:
    _, fuzzed = after_the_corpus

    fuzzed.account.check_satellites()


@pytest.mark.parametrize("queue", [TIMEOUTS, DISPATCHER])
def test_headers_nested_too_deep_stop_no_other_message(embedded: Fuzzed, queue: str) -> None:
    deep = RawMessage(b"deep", (), {RAW_HEADERS: f'{{"a": {"[" * 5_000}{"]" * 5_000}}}'})

    embedded.way.put(embedded.party.name + queue, [deep])
    embedded.account.settle(patience=15)

    embedded.account.check_one(deep)


@pytest.mark.parametrize("case", UNSENDABLE, ids=lambda case: case.name)
def test_a_timeout_that_can_be_stored_and_not_sent_stops_no_other_message(
    brokered: Fuzzed, case: Case
) -> None:
    brokered.way.put(brokered.party.name + case.queue, [case.raw])
    brokered.account.settle(patience=15)

    brokered.account.check([case.raw])
