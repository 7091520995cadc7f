"""The sub-batches of a batch: all messages, in order, in parts as small as possible."""

from __future__ import annotations

from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.support.makers import a_message, a_received
from timeoutmgr.message.message import Received
from timeoutmgr.transport.work import in_sub_batches

MOST = 100
sizes = st.lists(st.integers(0, 150), max_size=30)


def size(sub_batch: list[Received]) -> int:
    return sum(len(received.message.body) for received in sub_batch)


def portions_of(bodies: list[int]) -> tuple[list[Received], list[list[Received]]]:
    batch = [a_received(a_message(f"m{n}", b"x" * body)) for n, body in enumerate(bodies)]
    return batch, [[*sub_batch] for sub_batch in in_sub_batches(batch, MOST)]


@given(sizes)
def test_sub_batches_together_are_the_whole_batch_in_its_order(bodies: list[int]) -> None:
    batch, sub_batches = portions_of(bodies)

    assert [*chain.from_iterable(sub_batches)] == batch
    assert all(sub_batches)


@given(sizes)
def test_only_a_message_above_the_limit_makes_a_sub_batch_too_large(
    bodies: list[int],
) -> None:
    _, sub_batches = portions_of(bodies)

    assert all(size(sub_batch) <= MOST or len(sub_batch) == 1 for sub_batch in sub_batches)


@given(sizes)
def test_a_sub_batch_ends_before_a_message_that_has_no_room(bodies: list[int]) -> None:
    _, sub_batches = portions_of(bodies)

    assert all(size([*one, other[0]]) > MOST for one, other in pairwise(sub_batches))
