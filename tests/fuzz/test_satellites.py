"""Any message in a satellite's queue: the satellite goes on, and the message is not lost."""

from __future__ import annotations

import random

from tests.fuzz.conftest import Fuzzed
from tests.fuzz.letters import controls, generated, numbered, orders_to_timeouts, timeouts
from tests.fuzz.ways import Insert
from timeoutmgr.message.routes import DISPATCHER, TIMEOUTS


def test_no_message_ends_a_satellite_or_is_lost(fuzzed: Fuzzed) -> None:
    number = random.randrange(2**32)
    print(f"generated with seed {number}")  # shown where the test fails
    manner = fuzzed.manner
    storing = generated(timeouts(manner, fuzzed.sink), 240, number)
    storing += generated(orders_to_timeouts(manner), 60, number)
    dispatching = generated(controls(manner), 200, number)
    letters = numbered([*storing, *dispatching])
    first = letters[: len(storing)]
    random.Random(number).shuffle(first)

    fuzzed.way.put(fuzzed.party.name + TIMEOUTS, first)
    fuzzed.way.put(fuzzed.party.name + DISPATCHER, letters[len(storing) :])
    fuzzed.account.settle()

    fuzzed.account.check(letters)
    fuzzed.account.check_satellites()
    if not isinstance(fuzzed.way, Insert):
        fuzzed.account.check_bystander(letters)
