"""A process that is told to stop in the middle of its work ends soon, and repeats nothing."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack

import pytest

from tests.acceptance.matrix import EMBEDDED, REFERENCE, Pair
from tests.acceptance.place import Party, Place
from tests.acceptance.process import Child
from tests.reliability.pairs import on
from timeoutmgr.testing.signals import eventually

COUNT = 300


@pytest.mark.behaviour(51, 97)
@on(EMBEDDED, REFERENCE, Pair("rabbitmq", "sqlite"), Pair("mysql", "mysql"))
def test_a_stop_under_load_is_prompt_and_neither_loses_nor_repeats(place: Place) -> None:
    party = Party(place)
    party.endpoint.install()
    target = place.queue(f"{place.name}-target")

    with ExitStack() as stack:
        leaving, staying = (stack.enter_context(Child(place, chunk=10)) for _ in range(2))
        leaving.running()
        staying.running()
        sent = [
            party.endpoint.send(target, "Ping", n, delay=1 + n / 150).message_id
            for n in range(COUNT)
        ]
        received = place.received(target)
        received.wait_for(COUNT // 5)

        began = time.monotonic()
        code = leaving.terminate()
        took = time.monotonic() - began

        assert (code, took < 10) == (0, True), took
        assert len(received.poll()) < COUNT, "it was told to stop when all was done"
        received.wait_for(COUNT, timeout=60)
        eventually(lambda: party.endpoint.timeouts.count() == 0, "all are closed")
        assert Counter(message.id for message in received.poll()) == Counter(sent)
        assert staying.terminate() == 0
