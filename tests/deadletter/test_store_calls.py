"""Calls to a dead-letter store that may hang."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.forks import ended_in_a_child
from tests.support.waiting import eventually
from timeoutmgr.deadletter import feature
from timeoutmgr.deadletter.feature import ANSWER, LONGEST_ANSWER, StoreCalls
from timeoutmgr.errors import MessageRejected, NodeFull, StorageUnavailable
from timeoutmgr.transport.delivery_policy import Outage

BRIEF = 0.01


class Store:
    """A store whose calls wait while it hangs; its breaker counts failures and ends of outages."""

    def __init__(self) -> None:
        self.answers, self.asked = threading.Event(), threading.Event()
        self.answers.set()
        self.number = self.failures = self.ends = 0
        self.is_down = False

    def call(self) -> int:
        self.number += 1
        self.asked.set()
        self.answers.wait()
        return self.number

    def ping(self) -> None:
        if self.is_down:
            raise StorageUnavailable("down")

    def failure(self, _error: Exception) -> float:
        self.failures += 1
        return BRIEF

    def success(self) -> None:
        self.ends += 1


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.answers.set()


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def calls(store: Store, now: list[float], monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreCalls]:
    monkeypatch.setattr(feature, "LONGEST_ANSWER", BRIEF)
    outage = Outage(breaker=store, probe=store.ping)  # type: ignore[arg-type]  # its two methods
    made = StoreCalls(outage, BRIEF, lambda: now[0])
    made.start()
    made._patience = 3_600.0  # a loaded machine is no outage
    yield made
    store.answers.set()
    made.stop()


def hang(calls: StoreCalls, store: Store) -> None:
    """Have the store hang amid a call, which is given up."""
    store.asked.clear()
    store.answers.clear()
    calls._patience = BRIEF
    with pytest.raises(StorageUnavailable, match="does not answer within"):
        calls.make(store.call)
    assert store.asked.wait(30)


def test_a_call_has_its_result_or_its_error(calls: StoreCalls, store: Store) -> None:
    def refuse() -> None:
        raise MessageRejected("too long")

    assert calls.make(store.call) == 1
    with pytest.raises(MessageRejected, match="too long"):
        calls.make(refuse)
    assert store.failures == 0


def test_while_a_call_hangs_each_other_call_is_refused_at_once_and_none_is_made(
    calls: StoreCalls, store: Store
) -> None:
    hang(calls, store)
    calls._patience = 3_600.0  # it would wait that long if it waited

    for _ in range(3):
        with pytest.raises(StorageUnavailable, match=r"does not answer$"):
            calls.make(store.call)

    assert store.number == 1


def test_a_call_waits_for_the_call_before_it_no_longer_than_for_its_own_answer(
    calls: StoreCalls, store: Store
) -> None:
    store.answers.clear()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(calls.make, store.call)
        assert store.asked.wait(30)
        calls._patience = BRIEF
        second = threads.submit(calls.make, store.call)
        try:
            refused = second.exception(30)  # the first call has no answer yet
        finally:
            store.answers.set()
        calls._patience = 3_600.0

    assert first.result() == 1
    assert "does not answer within" in str(refused)
    assert calls.make(store.call) == 2, "a call that did not begin is not carried out"


def test_a_late_answer_is_no_answer_to_the_next_call(calls: StoreCalls, store: Store) -> None:
    hang(calls, store)
    late = calls._given_up
    assert late is not None
    store.answers.set()
    late.result()

    hang(calls, store)

    assert store.number == 2


def test_a_store_that_is_slow_gets_more_time_up_to_a_bound(
    calls: StoreCalls, store: Store, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature, "LONGEST_ANSWER", LONGEST_ANSWER)
    calls._least = ANSWER
    found = []

    for seconds in (0.0, 1.5, 9.0, 0.1):

        def slow(seconds: float = seconds) -> None:
            now[0] += seconds

        calls._patience = 3_600.0
        calls.make(slow)
        found.append(calls._patience)

    assert found == [ANSWER, 3.0, LONGEST_ANSWER, ANSWER]


def test_a_store_that_is_away_is_probed_until_it_answers(calls: StoreCalls, store: Store) -> None:
    def lose() -> None:
        store.is_down = True
        raise StorageUnavailable("lost")

    with pytest.raises(StorageUnavailable, match="lost"):
        calls.make(lose)
    eventually(lambda: store.failures > 1, "the outage is noted, again and again")
    with pytest.raises(StorageUnavailable, match=r"does not answer$"):
        calls.make(store.call)
    store.is_down = False
    eventually(lambda: not calls._is_away, "the store answers")

    calls._patience = 3_600.0
    assert calls.make(store.call) == 1
    assert store.ends == 1


def test_a_full_node_is_no_outage(calls: StoreCalls, store: Store) -> None:
    def fill() -> None:
        store.is_down = True  # a probe would find an outage
        raise NodeFull("node", 2, 1)

    with pytest.raises(NodeFull):
        calls.make(fill)

    assert calls.make(store.call) == 1
    assert store.failures == 0


def test_without_its_thread_a_call_is_made_by_its_caller(store: Store) -> None:
    outage = Outage(breaker=store, probe=store.ping)  # type: ignore[arg-type]  # its two methods
    calls = StoreCalls(outage, ANSWER)
    calls.stop()

    assert calls.make(threading.get_ident) == threading.get_ident()

    calls.start()
    calls._patience = 3_600.0
    assert calls.make(threading.get_ident) != threading.get_ident()
    calls.stop()
    assert calls.make(threading.get_ident) == threading.get_ident()


def test_a_child_that_is_forked_beside_a_call_makes_calls(calls: StoreCalls, store: Store) -> None:
    store.answers.clear()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(calls.make, store.call)
        assert store.asked.wait(30)

        def call_in_the_child() -> int:
            before = calls.make(threading.get_ident) == threading.get_ident()
            calls.start()
            calls._patience = 3_600.0
            after = calls.make(threading.get_ident) != threading.get_ident()
            return 0 if before and after else 1

        ended = ended_in_a_child(call_in_the_child)
        store.answers.set()

    assert waiting.result() == 1
    assert ended == 0
