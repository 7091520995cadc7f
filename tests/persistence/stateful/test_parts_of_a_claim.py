"""Two dispatchers lock parts of one claim: the first to end also ends the claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.persistence.stateful.machine import StoreMachine
from tests.persistence.stateful.subjects import MemorySubject, SqlProcesses, SqlSubject, Subject
from timeoutmgr.contracts import OnConflict

KINDS = ("memory", "sqlite", "postgres", "mysql")


@pytest.fixture(params=KINDS)
def machine(request: pytest.FixtureRequest, unique: str) -> Iterator[StoreMachine]:
    """The machine on one kind of store."""

    def subject() -> Subject:
        if request.param == "memory":
            return MemorySubject(unique, lambda store: store)
        processes_of: Callable[[str], SqlProcesses] = request.getfixturevalue("processes_of")
        return SqlSubject(unique, lambda store: store, processes_of(request.param))

    made = StoreMachine(subject)
    yield made
    made.teardown()


@pytest.mark.parametrize("names", ["a", "ab"])
def test_the_rest_of_a_claim_is_left_while_its_first_key_is_locked(
    machine: StoreMachine, names: str
) -> None:
    machine.timeouts_are_stored(0, [(name, 0, None, OnConflict.KEEP, b"1", ()) for name in names])
    machine.due_ones_are_claimed(0, 100)
    machine.a_chunk_is_locked(0, 0, "rest")
    machine.a_chunk_is_locked(1, 0, "first")
    machine.a_lock_is_left_without_a_word(0)

    machine.due_ones_are_claimed(0, 100)
    machine.a_chunk_is_locked(0, len(machine.chunks) - 1, "all")  # without the locked key
    machine.a_lock_is_closed(0, ["dispatched"])

    machine.the_list_is_the_models()
    machine.the_history_tells_every_outcome()
