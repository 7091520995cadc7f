"""Each message gets its own answer, in any order of a broker's answers and at any time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.transport.confirming import Broker, ack, nack, publishing, returned
from timeoutmgr.contracts import SendResult
from timeoutmgr.transport.amqp.dispatch import Started

SIZE = 4
FATES = (SendResult.CONFIRMED, SendResult.UNROUTABLE, SendResult.REFUSED)


@dataclass(eq=False)
class One:
    """A message, the broker's decision on it, and how much of the decision the broker has sent."""

    fate: SendResult
    message_id: str
    unwritten: SendResult = SendResult.UNKNOWN
    tag: int | None = None
    is_returned: bool = False
    is_answered: bool = False

    @property
    def is_back(self) -> bool:
        return self.fate is SendResult.UNROUTABLE

    @property
    def is_refused(self) -> bool:
        return self.fate is SendResult.REFUSED

    @property
    def answer(self) -> SendResult:
        """The answer that the sender must get."""
        if self.tag is None:
            return self.unwritten
        if self.is_answered:
            return self.fate
        return SendResult.UNROUTABLE if self.is_returned else SendResult.UNKNOWN


class Deciding(Broker):
    """A broker that numbers the messages by itself, and on a wait confirms as many as it can."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[One] = []
        self.accepted: list[One] = []
        self.waited_for: Sequence[One] | None = None
        self.is_lost = False

    def write(self, frames: bytes) -> None:
        seen = len(self.published)
        super().write(frames)
        if not self.is_lost:
            new = [self.made[int(body)] for body in self.published[seen:]]
            for tag, one in enumerate(new, seen + 1):
                one.tag = tag
            self.accepted += new
            assert len(self.open) <= SIZE

    @property
    def open(self) -> list[One]:
        return [one for one in self.accepted if not one.is_answered]

    def idle(self) -> None:
        if self.waited_for is not None:
            assert not all(one.is_answered for one in self.waited_for), "waits for others"
        last, multiple = self.sayable()[0]
        self.say(last, multiple=multiple)

    def give_back(self, one: One) -> None:
        if not one.is_returned:
            one.is_returned = True
            self.said.append(returned("q", one.message_id))

    def up_to(self, last: One, *, multiple: bool) -> list[One]:
        """Return the messages that a confirm with the tag of *last* covers."""
        return self.open[: self.open.index(last) + 1] if multiple else [last]

    def sayable(self) -> list[tuple[One, bool]]:
        """Return the confirms that could be sent now; confirms of the most messages come first."""
        both = [(one, multiple) for multiple in (True, False) for one in reversed(self.open)]
        return [
            (one, multiple)
            for one, multiple in both
            if self.can_say(self.up_to(one, multiple=multiple))
        ]

    def can_say(self, ones: Sequence[One]) -> bool:
        """Return whether a broker can confirm, or refuse, *ones* with a single answer.

        Among messages with the same id, the returned messages are confirmed before the rest.
        """
        if len({one.is_refused for one in ones}) != 1:
            return False
        returns = [one for one in self.open if one.is_returned or (one.is_back and one in ones)]
        for name in {one.message_id for one in ones if not one.is_refused}:
            fates = [one.is_back for one in ones if one.message_id == name]
            back = sum(one.message_id == name for one in returns)
            if fates != [place < back for place in range(len(fates))]:
                return False
        return True

    def say(self, last: One, *, multiple: bool) -> None:
        for one in self.up_to(last, multiple=multiple):
            if one.is_back:
                self.give_back(one)
            one.is_answered = True
        assert last.tag is not None
        self.said.append((nack if last.is_refused else ack)(last.tag, multiple=multiple))


class Interleaved(RuleBasedStateMachine):
    """Starts, answers and questions in any order; an alarm, and the end of the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Deciding()
        self.window = self.broker.window(SIZE)
        self.under_way: list[tuple[Started, list[One]]] = []

    @rule(fates=st.lists(st.tuples(st.sampled_from(FATES), st.sampled_from("abcd")), max_size=9))
    def start(self, fates: list[tuple[SendResult, str]]) -> None:
        first = len(self.broker.made)
        refused = SendResult.REFUSED if self.broker.blocked else SendResult.UNKNOWN
        ones = [One(fate, message_id, refused) for fate, message_id in fates]
        self.broker.made += ones
        self.broker.waited_for = None
        numbered = enumerate(ones, first)
        started = self.window.start(
            [publishing(one.message_id, body=b"%d" % number) for number, one in numbered]
        )
        self.under_way.append((started, ones))

    @precondition(lambda self: self.broker.open and not self.broker.is_lost)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        last, multiple = data.draw(st.sampled_from(self.broker.sayable()))
        self.broker.say(last, multiple=multiple)

    @precondition(lambda self: self.broker.open and not self.broker.is_lost)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.broker.open))
        if one.is_back:
            self.broker.give_back(one)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.ask(*data.draw(st.sampled_from(self.under_way)))

    @precondition(lambda self: self.broker.broken is None)
    @rule(blocked=st.booleans())
    def alarm(self, blocked: bool) -> None:
        self.broker.blocked = blocked

    @precondition(lambda self: not self.broker.is_lost and len(self.broker.made) > SIZE)
    @rule()
    def lose(self) -> None:
        for one in self.broker.open:  # returns tell apart the messages with the same id
            if one.is_back:
                self.broker.give_back(one)
        twice = {one.message_id for one in self.broker.open if not one.is_back}
        if not any(one.is_back and one.message_id in twice for one in self.broker.open):
            self.broker.is_lost = True
            self.broker.said.append(ConnectionResetError("gone"))

    @invariant()
    def is_written_in_the_order_of_the_calls(self) -> None:
        numbers = [int(body) for body in self.broker.published]
        assert numbers == sorted(set(numbers))

    def teardown(self) -> None:
        for started, ones in self.under_way:
            self.ask(started, ones)

    def ask(self, started: Started, ones: list[One]) -> None:
        self.broker.waited_for = ones
        results = self.window.finish(started)
        assert results == [one.answer for one in ones]


TestInterleaved = Interleaved.TestCase
TestInterleaved.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
