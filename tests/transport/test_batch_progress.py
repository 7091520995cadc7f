"""A batch takes no longer than its time, and no message waits behind a slow neighbour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.makers import a_message, a_received
from timeoutmgr.errors import StorageConflict, StorageUnavailable
from timeoutmgr.message.message import Received
from timeoutmgr.transport.batch_progress import (
    BATCH_SECONDS,
    LONG_HANDLING,
    MOST_DELIVERIES,
    BatchPace,
    BatchProgress,
)


class Hands:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def a_batch(count: int, delivery_count: int = 0) -> list[Received]:
    return [
        replace(a_received(a_message(str(number))), delivery_count=delivery_count)
        for number in range(count)
    ]


def keeping(given_back: list[Received]) -> Callable[[Sequence[Received]], int]:
    def release(batch: Sequence[Received]) -> int:
        given_back.extend(batch)
        return len(batch)

    return release


def ids(batch: Sequence[Received]) -> list[str]:
    return [received.message.id for received in batch]


def test_quick_messages_are_all_begun_in_their_order() -> None:
    progress = BatchProgress(a_batch(3), Hands())

    assert ids(list(progress)) == ["0", "1", "2"]
    assert ids(progress.begun) == ["0", "1", "2"]
    assert progress.waiting == []


def test_no_message_is_begun_once_the_batch_has_used_up_its_time() -> None:
    hands = Hands()
    progress = BatchProgress(a_batch(3), hands)

    for _ in progress:
        hands.now += BATCH_SECONDS / 2

    assert ids(progress.begun) == ["0", "1"]
    assert ids(progress.waiting) == ["2"]


def test_a_message_that_takes_longer_than_a_batch_is_a_batch() -> None:
    hands = Hands()
    progress = BatchProgress(a_batch(2), hands)
    each = iter(progress)

    assert next(each).message.id == "0"
    hands.now = 10 * BATCH_SECONDS
    assert next(each, None) is None


def test_a_step_that_does_not_iterate_has_dealt_with_the_whole_batch() -> None:
    progress = BatchProgress(a_batch(3), Hands())

    assert progress.give_back(len) == 0
    assert ids(progress.begun) == ["0", "1", "2"]
    assert progress.waiting == []


def test_messages_behind_a_slow_one_are_given_back_and_never_begun() -> None:
    hands, given_back = Hands(), list[Received]()
    progress = BatchProgress(a_batch(3), hands)
    each = iter(progress)
    next(each)
    hands.now = LONG_HANDLING

    assert progress.give_back(keeping(given_back)) == 2
    assert ids(given_back) == ["1", "2"]
    assert next(each, None) is None
    assert ids(progress.begun) == ["0"]
    assert progress.waiting == []


def test_messages_of_later_batches_are_given_back_too() -> None:
    hands, given_back = Hands(), list[Received]()
    first, second, third = a_batch(3)
    progress = BatchProgress([first], hands, [second, third])
    next(iter(progress))
    assert ids(progress.waiting) == ["1", "2"]
    hands.now = LONG_HANDLING

    assert progress.give_back(keeping(given_back)) == 2
    assert ids(given_back) == ["1", "2"]
    assert progress.waiting == []


def test_nothing_is_given_back_behind_a_quick_one() -> None:
    hands = Hands()
    progress = BatchProgress(a_batch(2), hands)
    next(iter(progress))
    hands.now = LONG_HANDLING / 2

    assert progress.give_back(lambda _batch: pytest.fail("given back")) == 0
    assert ids(progress.waiting) == ["1"]


def test_a_receiver_is_asked_once_a_slow_message_also_with_none_behind_it() -> None:
    """It may hold messages that were sent ahead."""
    hands, asked = Hands(), list[int]()
    progress = BatchProgress(a_batch(1), hands)
    next(iter(progress))
    hands.now = LONG_HANDLING

    def release(batch: Sequence[Received]) -> int:
        asked.append(len(batch))
        return 7

    assert [progress.give_back(release), progress.give_back(release)] == [7, 0]
    assert asked == [0]


def test_nothing_is_sent_ahead_to_a_step_that_takes_long() -> None:
    pace = BatchPace(100)
    assert pace.prefetch == 20

    pace.note(1, 10.0)

    assert pace.prefetch == 1


def test_a_message_that_was_delivered_often_stays_with_the_batch() -> None:
    hands, given_back = Hands(), list[Received]()
    progress = BatchProgress([*a_batch(2), *a_batch(1, MOST_DELIVERIES)], hands)
    next(iter(progress))
    hands.now = LONG_HANDLING

    assert progress.give_back(keeping(given_back)) == 1
    assert len(progress.waiting) == 1
    assert progress.waiting[0].delivery_count == MOST_DELIVERIES


def test_messages_that_could_not_be_given_back_are_not_begun() -> None:
    hands, away = Hands(), StorageUnavailable("the database is away")
    progress = BatchProgress(a_batch(4, MOST_DELIVERIES)[:1] + a_batch(3), hands)
    each = iter(progress)
    next(each)
    hands.now = LONG_HANDLING

    def fail(_batch: Sequence[Received]) -> int:
        raise away

    assert progress.give_back(fail) == 0
    hands.now = 0.0
    assert next(each, None) is None
    assert ids(progress.waiting) == ["0", "1", "2"]
    assert progress.failure is away


def test_after_a_failed_return_no_message_is_begun_again() -> None:
    progress = BatchProgress(a_batch(1), Hands())
    progress.failure = StorageUnavailable("the database is away")

    assert list(progress.repeat(progress.batch[0])) == []


def test_messages_behind_a_repeated_attempt_are_given_back() -> None:
    hands, given_back = Hands(), list[Received]()
    first, second, third = a_batch(3)
    progress = BatchProgress([first, second], hands, [third])
    next(iter(progress))

    again = progress.repeat(first)
    assert progress.waiting == []
    next(iter(again))
    hands.now = LONG_HANDLING

    assert again.give_back(keeping(given_back)) == 2
    assert ids(given_back) == ["1", "2"]


def test_messages_are_given_back_later_if_the_database_has_another_writer() -> None:
    hands, given_back = Hands(), list[Received]()
    progress = BatchProgress(a_batch(3), hands)
    next(iter(progress))
    hands.now = LONG_HANDLING

    def refuse(_batch: Sequence[Received]) -> int:
        raise StorageConflict("another writer")

    assert progress.give_back(refuse) == 0
    assert progress.give_back(keeping(given_back)) == 2
    assert ids(given_back) == ["1", "2"]


def test_messages_stay_with_the_batch_after_an_unforeseen_failure() -> None:
    """Else they would be neither handled nor given back until the receiver is closed."""
    hands = Hands()
    progress = BatchProgress(a_batch(2), hands)
    next(iter(progress))
    hands.now = LONG_HANDLING

    def fail(_batch: Sequence[Received]) -> int:
        raise ValueError("not thought of")

    with pytest.raises(ValueError, match="not thought of"):
        progress.give_back(fail)
    assert ids(progress.waiting) == ["1"]


def test_a_batch_that_is_withdrawn_has_no_more_waiting() -> None:
    progress = BatchProgress(a_batch(2), Hands(), behind=a_batch(3)[2:])
    next(iter(progress))

    assert ids(progress.withdraw()) == ["0", "1", "2"]
    assert progress.waiting == []


def test_nothing_is_given_back_after_the_end_of_the_batch() -> None:
    hands = Hands()
    progress = BatchProgress(a_batch(2), hands)
    next(iter(progress))
    hands.now = LONG_HANDLING
    progress.close()

    assert progress.give_back(lambda _batch: pytest.fail("given back")) == 0
    assert ids(progress.waiting) == ["1"]


@given(
    st.integers(1, 500),
    st.lists(st.tuples(st.integers(1, 500), st.floats(0, 100)), max_size=20),
)
def test_a_batch_is_from_one_message_to_the_most(most: int, noted: list[tuple[int, float]]) -> None:
    pace = BatchPace(most)
    for count, seconds in noted:
        pace.note(count, seconds)

    assert 1 <= pace.limit <= most


@pytest.mark.parametrize(("each", "expected"), [(0.1, 1), (0.01, 5), (0.001, 50), (0.0001, 100)])
def test_the_size_follows_the_time_that_a_message_takes(each: float, expected: int) -> None:
    pace = BatchPace(100)
    for _ in range(50):
        pace.note(pace.limit, pace.limit * each)

    assert pace.limit == pytest.approx(expected, abs=1)


def test_an_unknown_step_begins_with_a_few_messages() -> None:
    assert BatchPace(100).limit == 10
    assert BatchPace(3).limit == 3
