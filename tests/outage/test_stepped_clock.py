"""The wall clock of a running process is set: no stall, no storm, nothing early."""

from __future__ import annotations

import threading

import pytest

from tests.acceptance.place import Place
from tests.outage.clocks import MINUTE, SettableClock, true_time
from tests.outage.conftest import MakePlace
from tests.outage.process import Child
from timeoutmgr import Endpoint

POLL = 60.0
PROMPT = 20.0
"""Seconds within which a step must be overcome: far below a poll, and enough for any machine."""


@pytest.mark.behaviour(37, 54, 55)
@pytest.mark.parametrize("step", [-10 * MINUTE, 10 * MINUTE])
def test_a_step_neither_stalls_nor_hurries_a_manager(
    make_place: MakePlace, postgres_url: str, unique: str, clock: SettableClock, step: float
) -> None:
    place = make_place(transport=postgres_url, store=postgres_url)
    with child(place, clock) as manager:
        sender = true_sender(place, unique)
        sender.send(place.name, "Ping", None, delay=0)
        manager.hear("got")
        sender.send(place.name, "Ping", None, delay=3)
        sender.send(place.name, "Ping", None, delay=-step if step < 0 else step / 2)
        manager.wait_for_count("timeouts_stored", 3)

        clock.set(step)
        sender.send(place.name, "Ping", None, delay=2)  # is stored after the step
        manager.hear("got", 3)

        late = [true_time(said["at"]) - said["due"] for said in manager.heard("got")]
        assert min(late) >= 0
        assert max(late) < PROMPT
        assert len(manager.heard("got")) == 3


@pytest.mark.behaviour(54)
def test_a_step_forward_past_the_next_due_time_makes_no_storm_of_polls(
    make_place: MakePlace, postgres_url: str, unique: str, clock: SettableClock
) -> None:
    place = make_place(transport=postgres_url, store=postgres_url)
    with child(place, clock) as manager:
        sender = true_sender(place, unique)
        sender.send(place.name, "Ping", None, delay=5 * MINUTE)
        manager.wait_for_count("timeouts_stored", 1)

        clock.set(10 * MINUTE)
        sender.send(place.name, "Ping", None, delay=0)
        manager.hear("got")
        before = manager.counted("polls")
        threading.Event().wait(2)

        assert manager.counted("polls") - before <= 5


@pytest.mark.behaviour(26, 54)
def test_on_sqlite_a_clock_that_is_set_back_delays_and_set_right_delivers(
    make_place: MakePlace, sqlite_url: str, clock: SettableClock
) -> None:
    place = make_place(transport=sqlite_url, store=sqlite_url)
    with child(place, clock) as manager:
        manager.command("send 5")
        kept = manager.hear("sent")["id"]
        manager.wait_for_count("timeouts_stored", 1)

        clock.set(-10 * MINUTE)
        manager.command("send 0.5")  # by the clock as it is now
        first = manager.arrival(manager.hear("sent", 2)["id"])
        arrived_until_then = {said["id"] for said in manager.heard("got")}
        clock.set(0)
        # A step of more than a lease may repeat leased messages, as a pause would.
        second = manager.arrival(kept)

        assert kept not in arrived_until_then
        assert 0 <= first["clock"] - first["due"] < PROMPT
        assert 0 <= second["clock"] - second["due"] < 10 * MINUTE
        assert second["at"] - first["at"] < 5 + PROMPT


def child(place: Place, clock: SettableClock) -> Child:
    """Return a process of *place* with that clock, once it runs; it polls as by default."""
    place.made(place.configuration()).install()
    return Child(
        place.name,
        transport=place.transport_url,
        store=place.store_url,
        env=clock.env,
        poll=POLL,
    ).running()


def true_sender(place: Place, name: str) -> Endpoint:
    """Return an endpoint of this process, whose clock is right; *place* manages its timeouts."""
    config = place.plain(f"{name}-sender")
    config.use_external_timeout_manager(f"{place.name}.Timeouts")
    return place.run(config)
