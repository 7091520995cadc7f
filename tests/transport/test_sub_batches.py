"""A batch in portions: all of it, in its order, and none larger than it has to be."""

from __future__ import annotations

from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.support.makers import a_message, a_received
from timeoutmgr.message import Received
from timeoutmgr.transport.portions import in_portions

MOST = 100
sizes = st.lists(st.integers(0, 150), max_size=30)


def size(portion: list[Received]) -> int:
    return sum(len(received.message.body) for received in portion)


def portions_of(bodies: list[int]) -> tuple[list[Received], list[list[Received]]]:
    batch = [a_received(a_message(f"m{n}", b"x" * body)) for n, body in enumerate(bodies)]
    return batch, [[*portion] for portion in in_portions(batch, MOST)]


@given(sizes)
def test_portions_are_the_whole_batch_in_its_order(bodies: list[int]) -> None:
    batch, portions = portions_of(bodies)

    assert [*chain.from_iterable(portions)] == batch
    assert all(portions)


@given(sizes)
def test_only_a_message_that_is_larger_by_itself_makes_a_portion_too_large(
    bodies: list[int],
) -> None:
    _, portions = portions_of(bodies)

    assert all(size(portion) <= MOST or len(portion) == 1 for portion in portions)


@given(sizes)
def test_a_portion_ends_where_the_next_message_has_no_room(bodies: list[int]) -> None:
    _, portions = portions_of(bodies)

    assert all(size([*one, other[0]]) > MOST for one, other in pairwise(portions))
