from __future__ import annotations

import uuid

import pytest

from timeoutmgr.ids import random_id, uuid_text


def test_a_random_id_is_a_uuid_of_version_4_and_another_each_time() -> None:
    made = [random_id() for _ in range(100)]

    assert {uuid.UUID(one).version for one in made} == {4}
    assert {uuid.UUID(one).variant for one in made} == {uuid.RFC_4122}
    assert [str(uuid.UUID(one)) for one in made] == made
    assert len(set(made)) == 100


@pytest.mark.parametrize("number", [0, 2**128 - 1, 0x0123456789ABCDEF0123456789ABCDEF])
@pytest.mark.parametrize("version", [4, 5])
def test_an_id_is_spelled_as_uuid_spells_it(number: int, version: int) -> None:
    assert uuid_text(number, version) == str(uuid.UUID(int=number, version=version))
