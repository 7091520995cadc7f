"""Invariants I1 to I8, held to a model over any order of events."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.deadletter.making import Nodes, a_stored_copy, queues
from timeoutmgr.contracts.dead_letters import JournalLevel, MessageClass
from timeoutmgr.deadletter.store import DeadLetterStore
from timeoutmgr.deadletter.stored_copy import Placement, StoredCopy

_QUOTA: Final = 400
_NUMBERS: Final = itertools.count()
IDS: Final = st.sampled_from(["a", "A", "b", "ä"])
LEVELS: Final = st.sampled_from([JournalLevel(n) for n in range(4)])
NEGATIVE: Final = st.sampled_from([each for each in MessageClass if each.is_negative])
ENDED: Final = st.sampled_from([MessageClass.ACK_RECEIVE, *(n for n in MessageClass if n & 0x8000)])
SIZES: Final = st.sampled_from([1, 50, 150])


@dataclass(slots=True)
class Kept:
    """The state of a copy in the model."""

    copy: StoredCopy
    size: int
    deadline: int | None = None
    received_by: int | None = None
    arrived: bool = False
    late: bool = False


class Node(RuleBasedStateMachine):
    """One node; the model says where each message must be after each step."""

    def __init__(self, make: Callable[[], Nodes]) -> None:
        super().__init__()
        self.nodes = make()
        self.manager = self.nodes.manager(f"n{next(_NUMBERS)}", dead_letters=_QUOTA)
        self.now = self.nodes.clock.now()
        self.awaiting: dict[str, Kept] = {}
        self.dead: dict[str, Kept] = {}
        self.journal: dict[str, int] = {}

    # --- events of messages

    @rule(name=IDS, level=LEVELS, ended=NEGATIVE, xact=st.booleans(), size=SIZES)
    def a_message_fails_here(
        self, name: str, level: JournalLevel, ended: MessageClass, xact: bool, size: int
    ) -> None:
        copy = self._copy(name, level, ended, xact, size)

        placed = self.manager.place(copy)

        if JournalLevel.DEADLETTER not in level:
            assert placed is Placement.NOT_ASKED
            self.awaiting.pop(name, None)
        elif not self._fits(copy):
            assert placed is Placement.OVER_QUOTA  # I7: the new copy is discarded
        else:
            assert placed is Placement.PLACED
            self.awaiting.pop(name, None)
            self.dead[name] = Kept(copy, _size(copy))

    @rule(name=IDS, level=LEVELS.filter(bool), after=st.integers(0, 5), size=SIZES)
    def a_transactional_message_is_sent(
        self, name: str, level: JournalLevel, after: int, size: int
    ) -> None:
        copy = self._copy(name, level, MessageClass.NORMAL, True, size)
        deadline, received_by = self.now + after, self.now + 2 * after

        self.manager.keep([copy], deadline, received_by)

        self.dead.pop(name, None)
        self.awaiting[name] = Kept(copy, _size(copy), deadline, received_by)

    @rule(name=IDS)
    def it_arrives(self, name: str) -> None:
        self.manager.arrived([(name, "billing")])

        if name in self.awaiting:
            kept = self.awaiting[name]
            kept.arrived, kept.deadline = True, kept.received_by

    @rule(name=IDS, ended=ENDED)
    def its_final_acknowledgement_comes(self, name: str, ended: MessageClass) -> None:
        answer = self.manager.acknowledge((name, "billing"), ended)

        if name in self.awaiting:
            assert answer is self._settle(name, ended)
        elif name in self.dead and self.dead[name].copy.transactional:
            assert answer is Placement.PLACED  # I8: marked, and never sent again
            if ended.is_negative:
                self.dead[name].copy = _as(self.dead[name].copy, ended)
            else:
                self.dead[name].late = True
        else:
            assert answer is None

    @rule(by=st.integers(0, 12))
    def time_goes_on_and_is_swept(self, by: int) -> None:
        self.now += by
        due = [
            (name, kept)
            for name, kept in self.awaiting.items()
            if kept.deadline is not None and kept.deadline <= self.now
        ]

        assert self.manager.sweep(self.now) == len(due)

        for name, kept in sorted(due, key=lambda one: (one[1].deadline, one[0])):
            arrived = kept.arrived
            self._settle(
                name,
                MessageClass.NACK_RECEIVE_TIMEOUT
                if arrived
                else MessageClass.NACK_REACH_QUEUE_TIMEOUT,
            )

    @rule()
    def an_application_receives_the_oldest(self) -> None:
        for box in queues(self.manager)[:2]:
            with box.receive() as copy:
                if copy is not None:
                    del self.dead[copy.message.id]

    # --- invariants

    @invariant()
    def a_node_has_one_copy_where_the_model_has_it(self) -> None:
        dead, xact, journal = queues(self.manager)
        plain, transactional = dead.peek(), xact.peek()
        found = {one.message.id: one for one in [*plain, *transactional]}
        waiting = self._awaiting()

        assert len(found) == len(plain) + len(transactional)  # I1
        assert not found.keys() & waiting
        assert found.keys() == self.dead.keys()  # I2, I6
        assert waiting == self.awaiting.keys()
        assert {one.message.id for one in journal.peek()} == self.journal.keys()
        for name, kept in self.dead.items():
            one = found[name]
            assert one.message_class == kept.copy.message_class
            assert one.transactional is kept.copy.transactional
            assert one.late is kept.late
            assert JournalLevel.DEADLETTER in one.journal  # I6

    @invariant()
    def nothing_transactional_outlives_its_time_by_more_than_one_sweep(self) -> None:
        self.manager.sweep(self.now)
        for name, kept in list(self.awaiting.items()):
            if kept.deadline is not None and kept.deadline <= self.now:
                self._settle(
                    name,
                    MessageClass.NACK_RECEIVE_TIMEOUT
                    if kept.arrived
                    else MessageClass.NACK_REACH_QUEUE_TIMEOUT,
                )
        assert self._awaiting() == self.awaiting.keys()  # I5

    @invariant()
    def what_is_counted_is_what_is_there(self) -> None:
        table = self.nodes.store.tables.nodes
        with self.nodes.database.read() as connection:
            row = connection.execute(table.select().where(table.c.node == self.manager.node)).one()
        assert row.letters_count == len(self.dead)
        assert row.letters_bytes == sum(kept.size for kept in self.dead.values())
        assert row.awaiting_bytes == sum(kept.size for kept in self.awaiting.values())
        assert row.journal_bytes == sum(self.journal.values())
        assert row.letters_bytes <= _QUOTA  # I7

    # --- the model

    def _copy(
        self, name: str, level: JournalLevel, ended: MessageClass, xact: bool, size: int
    ) -> StoredCopy:
        return a_stored_copy(
            name,
            journal=level,
            message_class=ended,
            transactional=xact,
            body=b"x" * size,
            kept=self.now,
        )

    def _fits(self, copy: StoredCopy) -> bool:
        others = sum(kept.size for kept in self.dead.values())
        before = self.dead[copy.message.id].size if copy.message.id in self.dead else 0
        return others - before + _size(copy) <= _QUOTA

    def _settle(self, name: str, ended: MessageClass) -> Placement:
        kept = self.awaiting.pop(name)
        copy = _as(kept.copy, ended)
        if not ended.is_negative:
            if JournalLevel.JOURNAL not in copy.journal:
                return Placement.NOT_ASKED
            self.journal[name] = kept.size
            return Placement.PLACED
        if JournalLevel.DEADLETTER not in copy.journal:
            return Placement.NOT_ASKED
        if not self._fits(copy):
            return Placement.OVER_QUOTA
        self.dead[name] = Kept(copy, kept.size)
        return Placement.PLACED

    def _awaiting(self) -> set[str]:
        table = self.nodes.store.tables.awaiting
        with self.nodes.database.read() as connection:
            rows = connection.execute(table.select().where(table.c.node == self.manager.node)).all()
        return {row.message_id for row in rows}


def _as(copy: StoredCopy, ended: MessageClass) -> StoredCopy:
    return a_stored_copy(
        copy.message.id,
        journal=copy.journal,
        message_class=ended,
        transactional=copy.transactional,
        body=copy.message.body,
        kept=copy.kept,
    )


def _size(copy: StoredCopy) -> int:
    message = copy.message
    return len(message.body) + len('{"name":"a"}') + (5 if message.id == "ä" else 0)


@pytest.mark.behaviour(104)
@pytest.mark.parametrize(("kind", "examples"), [("sqlite", 20), ("postgres", 6), ("mysql", 5)])
def test_a_node_keeps_the_invariants_in_any_order_of_events(
    store_of: Callable[[str], DeadLetterStore], unique: str, kind: str, examples: int
) -> None:
    store = store_of(kind)

    class OnThisStore(Node):
        def __init__(self) -> None:
            super().__init__(lambda: Nodes(store, unique))

    run_state_machine_as_test(
        OnThisStore,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
