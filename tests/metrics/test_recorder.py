"""The telemetry that counts for Prometheus is as good as the plain one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dis import get_instructions
from threading import Barrier

import pytest

from timeoutmgr.message.instants import EARLIEST
from timeoutmgr.message.message import Message
from timeoutmgr.metrics.memory import (
    BUCKETS,
    DESTINATIONS,
    DURATION_CELLS,
    LATENESS_CELLS,
    LATENESS_EACH,
    CountMemory,
)
from timeoutmgr.metrics.recorder import Recorder
from timeoutmgr.telemetry import (
    Addressed,
    Counters,
    ObservesLateness,
    ObservesOperations,
    Operation,
    during_of,
)
from timeoutmgr.testing.signals import RecordingTelemetry

SWITCHING = ("CALL", "PRECALL", "JUMP_BACKWARD", "RESUME", "SEND")
"""How instructions begin at which the interpreter may change to another thread."""


def made(behind: RecordingTelemetry | Counters | None = None) -> tuple[Recorder, CountMemory]:
    counts = CountMemory.create(1)
    return Recorder(counts, counts.sections[0], behind or Counters()), counts


def test_a_snapshot_has_what_plain_counters_have() -> None:
    recorder, _ = made()
    plain = Counters()

    for telemetry in (recorder, plain):
        telemetry.count("polls", 2)
        telemetry.count("an event of a plugin")
        telemetry.value("clock_offset_seconds", 0.25)
        telemetry.value("lateness_seconds", 1.5)
        telemetry.value("a value of a plugin", 3.0)

    assert recorder.snapshot() == plain.snapshot()


def test_a_snapshot_begins_at_zero_although_another_process_counted_before() -> None:
    first, counts = made()
    first.count("polls", 5)

    second = Recorder(counts, counts.sections[0], Counters())
    second.count("polls")

    assert second.snapshot() == {"polls": 1}


def test_the_telemetry_of_the_user_hears_each_event() -> None:
    theirs = RecordingTelemetry()
    recorder, _ = made(theirs)

    recorder.count("polls", 2)
    recorder.value("purge_lag_seconds", 4.0)

    assert theirs.snapshot() == {"polls": 2, "purge_lag_seconds": 4.0}


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Have the interpreter change threads at each instruction at which it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-9)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
def test_no_count_of_many_threads_is_lost() -> None:
    recorder, counts = made()
    together = Barrier(4)

    def storm() -> None:
        together.wait()
        for _ in range(5_000):
            recorder.count("handled")
            recorder.late(2, [("billing", 1)])
            recorder.took(Operation.CONFIRM, 1)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(storm) for _ in range(4)]:
            done.result()

    cells = counts.sections[0].counts
    assert recorder.snapshot() == {"handled": 20_000}
    for first, total in ((LATENESS_CELLS, BUCKETS), (DURATION_CELLS[Operation.CONFIRM], 16)):
        assert (cells[first], cells[first + total]) == (20_000, 20_000)


@pytest.mark.parametrize("method", [Recorder.count, Recorder.late, Recorder._add, Recorder.took])
def test_no_other_thread_runs_between_the_read_and_the_write_of_a_cell(
    method: Callable[..., None],
) -> None:
    names = [each.opname for each in get_instructions(method)]
    writes = [at for at, name in enumerate(names) if name == "STORE_SUBSCR"]

    assert writes
    for write in writes:
        # An augmented assignment copies the cell's place, reads it, adds, and writes it.
        read = write - names[write::-1].index("COPY")
        assert [name for name in names[read:write] if name.startswith(SWITCHING)] == []


def test_each_message_is_observed_with_its_own_lateness() -> None:
    recorder, counts = made()
    assert isinstance(recorder, ObservesLateness)

    recorder.late(10_000_000, [("billing", 9_999_000), ("billing", 7_000_000)])

    cells = counts.sections[0].counts[LATENESS_CELLS:]
    # 1 ms is within the first bucket, 3 s in that of 5 s; then the sum.
    assert [at for at, count in enumerate(cells) if count] == [0, 11, 19]
    assert cells[19] == 3_001_000


def test_a_batch_is_observed_as_each_of_its_messages_alone() -> None:
    together, alone = made(), made()
    lateness = (5, 1_000, 1_001, 0, -1, 3, 3, 9_000_000_000, 9_000_000_001, 2, -7, -7, 4)
    sent = [
        (destination, 10_000_000_000 - late)
        for order in ("aaaaaaaaaaaaa", "ababbabaaabbb")
        for destination, late in zip(order, lateness, strict=True)
    ]

    together[0].late(10_000_000_000, sent)
    for each in sent:
        alone[0].late(10_000_000_000, [each])

    ours, theirs = (counts.sections[0].counts[LATENESS_CELLS:] for _, counts in (together, alone))
    assert ours.tolist() == theirs.tolist()
    assert sum(ours[BUCKETS::LATENESS_EACH][:2]) == 2 * sum(each for each in lateness if each > 0)
    assert sum(ours[BUCKETS + 1 :: LATENESS_EACH][:2]) == 6


def test_destinations_beyond_the_table_are_observed_together() -> None:
    recorder, counts = made()

    recorder.late(2, [(f"d{number}", 1) for number in range(DESTINATIONS + 2)])

    firsts = counts.sections[0].counts[LATENESS_CELLS::LATENESS_EACH][: DESTINATIONS + 1]
    assert firsts.tolist() == [1] * DESTINATIONS + [2]


def test_a_message_before_its_time_is_early_and_shortens_no_sum() -> None:
    recorder, counts = made()

    recorder.late(10_000_000, [("billing", 10_000_001)])

    cells = counts.sections[0].counts[LATENESS_CELLS:]
    assert [at for at, count in enumerate(cells) if count] == [0, 20]


def test_a_sum_that_is_full_stays_full_and_each_message_counts() -> None:
    recorder, counts = made()

    for _ in range(2):
        recorder.late(0, [(name, EARLIEST) for name in ("billing", "sales") for _ in range(100)])

    billing = counts.sections[0].counts[LATENESS_CELLS:][:LATENESS_EACH]
    assert sum(billing[:BUCKETS]) == 200
    assert billing[BUCKETS] == 2**63 - 1


def test_a_duration_is_in_the_bucket_of_its_operation_and_in_the_sum() -> None:
    recorder, counts = made()

    recorder.took(Operation.CONFIRM, 500)
    recorder.took(Operation.CONFIRM, 31_000_000)

    cells = counts.sections[0].counts[DURATION_CELLS[Operation.CONFIRM] :]
    # 0.5 ms is within the first bucket, 31 s beyond the last bound; then the sum.
    assert [at for at, count in enumerate(cells) if count] == [0, 15, 16]
    assert cells[16] == 31_000_500
    assert sum(counts.sections[0].counts[DURATION_CELLS[Operation.STORE] :][:17]) == 0


def test_an_operation_that_fails_is_observed_too() -> None:
    recorder, counts = made()
    assert isinstance(recorder, ObservesOperations)

    with pytest.raises(ValueError, match="broken"), recorder.during(Operation.HANDLER, ()):
        raise ValueError("broken")

    assert sum(counts.sections[0].counts[DURATION_CELLS[Operation.HANDLER] :][:16]) == 1


def test_the_telemetry_of_the_user_observes_each_operation() -> None:
    class Theirs(Counters):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        @contextmanager
        def during(self, operation: Operation, messages: Iterable[Addressed]) -> Iterator[None]:
            names = [f"{queue} {message.id}" for queue, message in messages]
            self.seen.append(f"{operation} {names} begins")
            yield
            self.seen.append("and ends")

    theirs = Theirs()
    recorder = Recorder(memory := CountMemory.create(1), memory.sections[0], theirs)

    with recorder.during(Operation.STORE, [("shop", Message(id="m1"))]):
        theirs.seen.append("is observed")

    assert theirs.seen == ["store ['shop m1'] begins", "is observed", "and ends"]


def test_nothing_surrounds_an_operation_that_no_telemetry_observes() -> None:
    messages = iter([("shop", Message(id="m1"))])

    with during_of(Counters())(Operation.STORE, messages):
        pass

    assert next(messages)[0] == "shop"  # not even read
