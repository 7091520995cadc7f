"""A message whose handler takes long keeps no other message waiting while a thread is free."""

from __future__ import annotations

import threading
from typing import Any

from tests.acceptance.matrix import EACH_ONCE, matrix
from tests.acceptance.place import Party, Place
from tests.support.makers import a_message
from timeoutmgr.endpoint.handlers import HandlerContext

COUNT = 25
"""More than a thread takes and has sent ahead at first, so that it stands before any of them."""


@matrix(pairs=EACH_ONCE)
def test_the_messages_behind_a_slow_one_are_handled_by_another_thread(place: Place) -> None:
    party = Party(place, concurrency=2)
    finish = threading.Event()

    @party.config.handler("Slow")
    def slow(body: Any, context: HandlerContext) -> None:
        assert finish.wait(60)
        party.inbox(body, context)

    place.queue(party.name)
    slow_one = place.put(party.name, a_message("slow", enclosed_message_types="Slow"))
    quick = [place.put(party.name, a_message(f"quick-{number}")) for number in range(COUNT)]
    party.start()

    party.inbox.wait_for(COUNT)
    finish.set()

    party.inbox.wait_for(COUNT + 1)
    arrived = [arrival.id for arrival in party.inbox.arrived]
    assert sorted(arrived) == sorted(one.id for one in [slow_one, *quick])
    assert arrived[-1] == slow_one.id
