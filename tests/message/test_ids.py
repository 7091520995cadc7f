from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from timeoutmgr.message.ids import RepeatableIds, random_id, uuid_text


def test_a_random_id_is_a_uuid_of_version_4_and_another_each_time() -> None:
    made = [random_id() for _ in range(100)]

    assert {uuid.UUID(one).version for one in made} == {4}
    assert {uuid.UUID(one).variant for one in made} == {uuid.RFC_4122}
    assert [str(uuid.UUID(one)) for one in made] == made
    assert len(set(made)) == 100


@pytest.mark.parametrize("number", [0, 2**128 - 1, 0x0123456789ABCDEF0123456789ABCDEF])
@pytest.mark.parametrize("version", [4, 5])
def test_an_id_is_spelled_as_uuid_spells_it(number: int, version: int) -> None:
    by_uuid = str(uuid.UUID(int=number, version=version))
    assert uuid_text(number.to_bytes(16, "big"), version) == by_uuid


def test_repeated_sends_get_their_ids_again_in_any_order() -> None:
    sent = [("billing", "Bill", b"1"), ("billing", "Bill", b"1"), ("mail", "Bill", b"1")]
    first, again = RepeatableIds("sales", "m1", "noon"), RepeatableIds("sales", "m1", "noon")

    before = [first.next(*one) for one in sent]
    after = [again.next(*one) for one in reversed(sent)]

    assert len(set(before)) == 3
    assert set(after) == set(before)
    assert {uuid.UUID(one).version for one in before} == {8}


def test_other_causes_and_other_contents_have_other_ids() -> None:
    causes = [
        ("sales", "m1", "noon"),
        ("sales", "m1", "one"),
        ("sales", "m2", "noon"),
        ("salesm1",),
    ]
    contents = [("q", "T", b""), ("q", "", b"T"), ("qT", "", b""), ("q", "T", b"\0")]

    made = {RepeatableIds(*cause).next(*content) for cause in causes for content in contents}

    assert len(made) == len(causes) * len(contents)


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("many_switches")
def test_threads_that_send_the_same_never_share_an_id() -> None:
    ids = RepeatableIds("sales", "m1", "noon")

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda n: ids.next("q", "T", b"%d" % (n // 8)), range(40_000)))

    assert len(set(made)) == 40_000
