"""Coroutine handlers keep the promises of plain handlers, and many run at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

from tests.acceptance.matrix import EACH_ONCE, RECEIVE_ONLY, REPRESENTATIVE, matrix
from tests.acceptance.place import Party, Place
from tests.support.makers import a_message
from tests.support.waiting import eventually
from timeoutmgr import AsyncHandlerContext, HandlerContext, RecoverabilitySettings

COUNT = 20
QUICK = RecoverabilitySettings(immediate=2, delayed=1, increase=timedelta(milliseconds=100))


def put(place: Place, party: Party, kind: str, count: int) -> set[str]:
    """Put *count* messages into the queue of *party*; return their ids."""
    place.queue(party.name)
    names = [f"{kind}-{number}" for number in range(count)]
    for name in names:
        place.put(party.name, a_message(name, enclosed_message_types=kind))
    return set(names)


@matrix(pairs=EACH_ONCE)
def test_as_many_coroutines_run_at_once_as_the_setting_allows(place: Place) -> None:
    party = Party(place, concurrency=2, async_concurrency=COUNT, transaction_mode=RECEIVE_ONLY)
    barrier = asyncio.Barrier(COUNT)

    @party.config.handler("Meet")
    async def meet(body: Any, context: AsyncHandlerContext) -> None:
        await barrier.wait()  # none passes before all have come
        party.inbox(body, context)

    sent = put(place, party, "Meet", COUNT)
    party.start()

    assert {arrival.id for arrival in party.inbox.wait_for(COUNT)} == sent
    party.telemetry.wait_for("handled", COUNT)


@matrix(pairs=EACH_ONCE, all_modes=True)
def test_coroutines_without_a_session_run_at_once_in_each_mode(place: Place) -> None:
    party = Party(place, concurrency=2, async_concurrency=COUNT)
    barrier = asyncio.Barrier(COUNT)

    @party.config.handler("Meet", session=False)
    async def meet(body: Any, context: AsyncHandlerContext) -> None:
        await barrier.wait()
        context.send_local("Met", {"id": context.message_id})

    put(place, party, "Meet", COUNT)
    party.start()

    arrived = party.inbox.wait_for(COUNT)
    assert sorted(arrival.body["id"] for arrival in arrived) == sorted(
        f"Meet-{number}" for number in range(COUNT)
    )


@matrix(pairs=EACH_ONCE)
def test_a_slow_coroutine_keeps_no_other_from_its_acknowledgement(place: Place) -> None:
    party = Party(place, concurrency=1, async_concurrency=5, transaction_mode=RECEIVE_ONLY)
    finish = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    @party.config.handler("Slow")
    async def slow(body: Any, context: AsyncHandlerContext) -> None:
        loops.append(asyncio.get_running_loop())
        await finish.wait()
        party.inbox(body, context)

    @party.config.handler("Quick")
    async def quick(body: Any, context: AsyncHandlerContext) -> None:
        await asyncio.sleep(0)
        party.inbox(body, context)

    put(place, party, "Slow", 1)
    put(place, party, "Quick", COUNT)
    party.start()

    party.telemetry.wait_for("handled", COUNT)
    assert all(arrival.id.startswith("Quick") for arrival in party.inbox.arrived)
    loops[0].call_soon_threadsafe(finish.set)
    party.telemetry.wait_for("handled", COUNT + 1)
    assert len(party.inbox.arrived) == COUNT + 1


@matrix(pairs=EACH_ONCE, all_modes=True)
def test_a_coroutine_that_fails_is_tried_again_and_takes_no_neighbour_along(place: Place) -> None:
    party = Party(place, concurrency=2, recoverability=QUICK)
    tries: Counter[str] = Counter()

    @party.config.handler("Bill")
    async def bill(body: Any, context: AsyncHandlerContext) -> None:
        tries[context.message_id] += 1
        await asyncio.sleep(0)
        if context.message_id == "Bill-3" and tries["Bill-3"] < 4:
            raise ValueError("no")
        if context.message_id == "Bill-7":
            raise asyncio.CancelledError
        party.inbox(body, context)
        context.send_local("Billed", {"id": context.message_id})

    sent = put(place, party, "Bill", COUNT)
    party.start()

    expected = 2 * (COUNT - 1)
    arrived = Counter(arrival.message_type for arrival in party.inbox.wait_for(expected))
    assert arrived == {"Bill": COUNT - 1, "Billed": COUNT - 1}
    assert party.errors.wait_for(1)[0].id == "Bill-7"
    ids = {arrival.id for arrival in party.inbox.arrived if arrival.message_type == "Bill"}
    assert ids == sent - {"Bill-7"}
    assert {tries[name] for name in sent - {"Bill-3", "Bill-7"}} == {1}


@matrix(pairs=REPRESENTATIVE)
def test_plain_and_coroutine_handlers_of_one_message_succeed_or_fail_together(
    place: Place,
) -> None:
    party = Party(place, recoverability=RecoverabilitySettings(immediate=1, delayed=0))

    def plain(_body: Any, context: HandlerContext) -> None:
        context.send_local("By plain", {})

    async def coroutine(_body: Any, context: AsyncHandlerContext) -> None:
        await asyncio.sleep(0)
        context.send_local("By coroutine", {})
        if context.message_id == "Both-1":
            raise ValueError("no")

    party.config.add_handler("Both", plain)
    party.config.add_handler("Both", coroutine)
    put(place, party, "Both", 2)
    party.start()

    party.telemetry.wait_for("moved_to_error")
    types = [arrival.message_type for arrival in party.inbox.wait_for(2)]
    assert sorted(types) == ["By coroutine", "By plain"]


@matrix(pairs=EACH_ONCE, needs={"processes"}, all_modes=True)
def test_a_coroutine_that_a_stop_cancels_leaves_its_message_in_the_queue(place: Place) -> None:
    party = Party(place, concurrency=1, shutdown_timeout=timedelta(0))
    undone: list[str] = []

    @party.config.handler("Wait")
    async def wait(_body: Any, context: AsyncHandlerContext) -> None:
        context.send_local("Sent by a cancelled handler", {})
        party.telemetry.count("waits")
        try:
            await asyncio.Event().wait()
        finally:
            undone.append(context.message_id)

    put(place, party, "Wait", 1)
    party.start()
    party.telemetry.wait_for("waits")
    party.endpoint.stop()

    assert undone == ["Wait-0"]
    assert party.telemetry.counted("handlers_stopped") == 1
    for event in ("moved_to_error", "immediate_retries", "delayed_retries"):
        assert party.telemetry.counted(event) == 0
    again = Party(place)
    again.start()
    assert [arrival.id for arrival in again.inbox.wait_for(1)] == ["Wait-0"]
    assert len(again.inbox.arrived) == 1


@matrix(pairs=REPRESENTATIVE)
def test_a_stop_waits_for_coroutines_that_end_in_time(place: Place) -> None:
    party = Party(place, concurrency=2, async_concurrency=COUNT)

    @party.config.handler("Work", session=False)
    async def work(_body: Any, _context: AsyncHandlerContext) -> None:
        party.telemetry.count("begun")
        # It ends after the stop has begun: only the running loop moves it on.
        for _ in range(50):
            await asyncio.sleep(0.001)

    put(place, party, "Work", COUNT)
    party.start()
    party.telemetry.wait_for("begun")
    party.endpoint.stop()

    eventually(
        lambda: party.telemetry.counted("handled") == party.telemetry.counted("begun"),
        "every coroutine that began has ended and is acknowledged",
    )
