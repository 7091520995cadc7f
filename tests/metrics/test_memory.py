"""Counts in shared memory: what a process that is killed leaves, and what others see of it."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable

import pytest

from timeoutmgr.metrics import memory
from timeoutmgr.metrics.memory import DESTINATIONS, OTHER, CountMemory, State
from timeoutmgr.metrics.recorder import Recorder
from timeoutmgr.telemetry import Counters


def recorder(counts: CountMemory, number: int = 0) -> Recorder:
    return Recorder(counts, counts.sections[number], Counters())


def in_a_child(action: Callable[[], None]) -> None:
    """Run *action* in a process that is killed right after."""
    child = os.fork()
    if not child:
        try:
            action()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_a_killed_process_leaves_its_counts_to_its_successor() -> None:
    counts = CountMemory.create(2)

    for _ in range(2):
        in_a_child(
            lambda: recorder(CountMemory.attach(counts.descriptor), 1).count("timeouts_stored", 3)
        )

    cell = memory.EVENT_CELLS["timeouts_stored"]
    assert [section.counts[cell] for section in counts.sections] == [0, 6]


def test_a_destination_has_one_number_in_all_processes() -> None:
    counts = CountMemory.create(2)
    recorder(counts).late(2_000_000, [("billing", 1_000_000)])

    def observe() -> None:
        theirs = recorder(CountMemory.attach(counts.descriptor), 1)
        theirs.late(2_000_000, [("shipping", 1_000_000), ("billing", 1_000_000)])

    in_a_child(observe)

    assert counts.destinations.all()[:2] == ["billing", "shipping"]
    assert counts.destinations.number("shipping") == 1


def test_a_process_that_is_killed_while_it_adds_a_name_keeps_no_other_from_adding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = CountMemory.create(1)

    def killed_before_the_count(at: int, name: bytes) -> None:
        counts.destinations._view[10:14] = name[:4]
        os.kill(os.getpid(), signal.SIGKILL)

    def add() -> None:
        monkeypatch.setattr(counts.destinations, "_write", killed_before_the_count)
        counts.destinations.number("torn")

    in_a_child(add)

    assert counts.destinations.number("whole") == 0
    assert counts.destinations.all()[0] == "whole"


def test_while_a_name_is_added_to_one_table_no_thread_adds_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = CountMemory.create(1)
    entered: list[bool] = []

    def try_another_table(_at: int, _name: bytes) -> None:
        # Its thread would unlock the file, which other processes then write to.
        entered.append(counts.queues.lock.acquire(blocking=False))

    monkeypatch.setattr(counts.destinations, "_write", try_another_table)

    counts.destinations.number("billing")

    assert entered == [False]


def test_names_beyond_the_table_share_a_number_and_earlier_names_keep_theirs() -> None:
    names = CountMemory.create(1).destinations
    numbers = [names.number(f"queue-{number}") for number in range(DESTINATIONS + 2)]

    assert numbers == [*range(DESTINATIONS), DESTINATIONS, DESTINATIONS]
    assert names.number("queue-7") == 7
    assert names.all()[-1] == OTHER


def test_names_of_another_process_are_known_once_the_table_is_full() -> None:
    counts = CountMemory.create(1)

    def fill() -> None:
        for number in range(DESTINATIONS):
            counts.destinations.number(f"queue-{number}")

    in_a_child(fill)

    assert counts.destinations.number("late") == DESTINATIONS
    assert counts.destinations.number("queue-9") == 9


def test_a_name_is_cut_and_still_found() -> None:
    names = CountMemory.create(1).queues

    assert names.number("q" * 300) == names.number("q" * 300) == 0
    assert names.all()[0] == "q" * 254


def test_the_end_of_a_process_leaves_counts_and_no_values() -> None:
    counts = CountMemory.create(1)
    section = counts.sections[0]
    ours = recorder(counts)
    ours.count("polls")
    ours.value("purge_lag_seconds", 5.0)
    ours.late(5, [("billing", 0)])
    section.set_state(State.TICK, 7.0)

    section.forget_values()

    assert not section.has(State.TICK)
    assert math.isnan(section.numbers[memory.VALUE_CELLS["purge_lag_seconds"]])
    assert section.counts[memory.EVENT_CELLS["polls"]] == 1
    assert sum(section.counts[memory.LATENESS_CELLS :]) == 6  # a bucket, and the sum of 5 µs
