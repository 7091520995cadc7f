"""Messages that are handled concurrently: a pump begins them, and they end in any order."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from timeoutmgr.message.message import Received
from timeoutmgr.resilience.after_fork import begin_anew_after_fork

if TYPE_CHECKING:
    from timeoutmgr.transport.work import Work


@dataclass(frozen=True, slots=True)
class HandlingOutcome:
    """The end of a handling: an *error*, or the *effects* that the step settles."""

    received: Received
    error: Exception | None = None
    effects: object = None


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """The outcome of the *attempt*-th handling of a message since it was received."""

    outcome: HandlingOutcome
    attempt: int


class ConcurrentStep(Protocol):
    """Handles messages concurrently. Pumps call its methods, each in its own thread."""

    def handles(self, received: Received) -> bool:
        """Return whether *received* is handled concurrently with others."""
        ...

    def begin(
        self, received: Received, ended: Callable[[HandlingOutcome], None]
    ) -> Callable[[], None]:
        """Begin to handle *received*; return a function that cancels the handling. Never waits.

        *ended* is called exactly once, from any thread, perhaps before this method returns.
        """
        ...

    def settle(self, outcomes: Sequence[HandlingOutcome], work: "Work") -> None:
        """Send what the handlings of *outcomes* sent; fail each message that failed.

        Raises if all of *outcomes* must be undone and then settled one by one.
        """
        ...


class Slots:
    """Slots for messages that are handled concurrently; several pumps share them."""

    def __init__(self, count: int) -> None:
        self._count: Final = count
        self.after_fork()
        begin_anew_after_fork(self)

    def after_fork(self) -> None:
        """Free every slot: the messages belong to the parent."""
        self.changed = threading.Condition()
        """Notified when a message ended or a slot became free; its lock guards both."""
        self.free = self._count

    def reserve(self, most: int) -> int:
        """Reserve up to *most* slots; return how many."""
        with self.changed:
            reserved = min(most, self.free)
            self.free -= reserved
            return reserved

    def give(self, count: int) -> None:
        """Free *count* slots."""
        with self.changed:
            self.free += count
            self.changed.notify_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrentHandling:
    """The step that handles messages concurrently, and the slots that all pumps share."""

    step: ConcurrentStep
    most: int
    slots: Slots
    pumps: int
    """The number of pumps that share the slots."""
    is_alone: bool
    """Whether every message of the queue is handled by this step."""


class InFlight:
    """The messages of one receiver that are handled concurrently.

    A slot is occupied until its message is settled, so that a crash repeats no more messages than
    there are slots.
    """

    def __init__(self, slots: Slots, interrupt: Callable[[], None]) -> None:
        self._slots = slots
        self._interrupt = interrupt
        self._running: dict[int, Callable[[], None]] = {}
        self._ended: list[EndedAttempt] = []
        self._begun = 0
        self._is_abandoned = False

    @property
    def is_empty(self) -> bool:
        """Whether no message is being handled or waits to be settled."""
        with self._slots.changed:
            return not self._running and not self._ended

    def begin(self, received: Received, step: ConcurrentStep, attempt: int = 1) -> None:
        """Begin to handle *received* in a slot that was reserved for it."""
        with self._slots.changed:
            self._begun += 1
            number = self._begun
            self._running[number] = lambda: None
        cancel = step.begin(
            received, lambda outcome: self._end(number, EndedAttempt(outcome, attempt))
        )
        with self._slots.changed:
            if number in self._running:
                self._running[number] = cancel

    def collect_ended(self) -> Sequence[EndedAttempt]:
        """Return the attempts that ended since the last call, in the order in which they ended."""
        with self._slots.changed:
            ended, self._ended = self._ended, []
            return ended

    def wait(self, seconds: float, *, for_slot: bool = False) -> bool:
        """Wait at most *seconds* until a message ends or, with *for_slot*, a slot is free."""
        changed = self._slots.changed
        with changed:
            return changed.wait_for(
                lambda: bool(self._ended or (for_slot and self._slots.free)), seconds
            )

    def abandon(self) -> None:
        """Cancel and forget all: the receiver is closed, and the queue has the messages again."""
        with self._slots.changed:
            self._is_abandoned = True
            unsettled, self._ended = len(self._ended), []
            running = list(self._running.values())
        self._slots.give(unsettled)
        for cancel in running:
            cancel()

    def _end(self, number: int, ended: EndedAttempt) -> None:
        with self._slots.changed:
            self._running.pop(number, None)
            if self._is_abandoned:
                self._slots.give(1)
                return
            self._ended.append(ended)
            self._slots.changed.notify_all()
            if len(self._ended) == 1:
                # Under the lock: an abandoned receiver may be closed.
                self._interrupt()
