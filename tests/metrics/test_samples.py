"""What is sampled of a store in numbers: pending and claimed timeouts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from tests.metrics.test_exposition import samples
from tests.metrics.test_labels import labelled
from tests.support.clock import START, FakeClock
from tests.support.makers import a_timeout
from tests.support.store import ScriptedStore
from timeoutmgr.contracts import TimeoutStore
from timeoutmgr.endpoint.timeouts import Timeouts
from timeoutmgr.metrics.memory import CountMemory, State
from timeoutmgr.metrics.samples import COUNT_EVERY, StoreDetails, StoreSample
from timeoutmgr.persistence import SqlPersistence


class Sampled:
    """A store, and the page of an endpoint that samples it."""

    def __init__(self, store_of: Callable[[FakeClock], TimeoutStore] = ScriptedStore) -> None:
        self.clock = FakeClock()
        self.store = store_of(self.clock)
        self.counts = CountMemory.create(1)
        section = self.counts.sections[0]
        section.set_state(State.TICK, self.clock.monotonic())
        details = StoreDetails(self.store, self.clock, self.counts, section)
        self.sample = StoreSample(lambda: None, self.clock, section, details)

    def put(self, *ids: str) -> None:
        self.store.store_many([a_timeout(each, START) for each in ids])

    def page(self) -> dict[str, float]:
        return samples(self.counts, self.clock)


def test_pending_and_claimed_timeouts_are_shown_with_the_time_of_the_count() -> None:
    sampled = Sampled()
    sampled.put("a", "b", "c")
    sampled.store.claim(START, 2, "owner")
    sampled.sample()
    sampled.clock.advance(7)

    page = sampled.page()

    assert page["pending"] == 3
    assert page["in_flight"] == 2
    assert page["pending_as_of_timestamp_seconds"] == START / 1_000_000


def test_pending_timeouts_are_counted_less_often_than_the_store_is_sampled() -> None:
    sampled = Sampled()
    sampled.sample()
    sampled.put("a")
    sampled.clock.advance(COUNT_EVERY - 1)
    sampled.sample()
    before = sampled.page()["pending"]
    sampled.clock.advance(1)
    sampled.sample()

    assert (before, sampled.page()["pending"]) == (0, 1)


def test_a_paused_destination_is_shown_until_its_resume(sqlite_url: str) -> None:
    with closing(SqlPersistence(sqlite_url)) as persistence:
        persistence.install()
        sampled = Sampled(lambda clock: persistence.timeouts("sales", clock))
        timeouts = Timeouts(sampled.store, lambda due: None)

        def paused() -> dict[tuple[str, ...], float]:
            sampled.sample()
            return labelled(sampled.counts, "paused")

        before = paused()
        timeouts.pause("mail")
        during = paused()
        timeouts.resume("mail")

        after = paused()

    assert (before, during, after) == ({}, {("mail",): 1}, {("mail",): 0})
