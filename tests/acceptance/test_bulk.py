"""Many messages in one call, through the queue or past it, on every kind of pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

import pytest

from tests.acceptance.matrix import EMBEDDED, REFERENCE, REPRESENTATIVE, matrix
from tests.acceptance.place import SOON, Party, Place
from timeoutmgr import SendOptions, Sent, ToSend

COUNT = 510
"""More than one window."""


def orders(party: Party, delay: timedelta) -> list[ToSend]:
    return [
        ToSend(party.name, "Ping", number, SendOptions(delay=delay, message_id=f"order-{number}"))
        for number in range(COUNT)
    ]


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.parametrize("way", ["send_many", "store_many"])
def test_each_of_a_bulk_is_delivered_once_and_not_early(place: Place, way: str) -> None:
    party = Party(place).start()
    bulk: Callable[[Iterable[ToSend]], int] = getattr(party.endpoint, way)

    assert bulk(orders(party, SOON)) == COUNT

    for number in range(COUNT):
        assert party.inbox.wait_for_id(f"order-{number}").lateness >= 0
    assert len(party.inbox.arrived) == COUNT


@matrix(pairs=[EMBEDDED, REFERENCE])
def test_a_bulk_that_is_run_again_stores_nothing_twice(place: Place) -> None:
    party = Party(place)
    party.endpoint.install()
    reported: list[Sent] = []
    later = orders(party, timedelta(hours=1))

    party.endpoint.store_many(later, on_sent=reported.extend)
    party.endpoint.store_many(later)

    assert party.endpoint.timeouts.count() == COUNT
    assert {one.id for one in reported} == {view.id for view in party.endpoint.timeouts.list()}
