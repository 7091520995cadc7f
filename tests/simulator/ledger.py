"""The ledger: the accepted messages, their fates, and a verdict on every promise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tests.model.promises import Promise
from timeoutmgr.contracts import CancelResult, ChangeResult, Key
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message

from .process import Process


@dataclass(slots=True, eq=False)
class LockedChunk:
    """Timeouts in the hands of one dispatcher, from the take to the close.

    *until* is the end of the claim where nothing but the claim protects them. *interrupted* is a
    crash in the sense of the promise: the process killed, its connection with the storage lost,
    a commit unanswered, a pause longer than the claim. *unknown* are timeouts without a confirm.
    """

    process: Process
    keys: Collection[Key]
    began: int
    until: Micros | None = None
    interrupted: bool = False
    cut_off: bool = False
    unknown: set[str] = field(default_factory=set)
    ended: int | None = None

    def met_a_crash(self, message_id: str, now: Micros) -> bool:
        """Return whether *message_id*, which it may have sent, can be sent again."""
        if self.interrupted or message_id in self.unknown or self.process.dead:
            return True
        return self.ended is None and self.until is not None and now >= self.until


@dataclass(slots=True, eq=False)
class MessageRecord:
    """One timeout from its sender's view. Counters are the ledger's *step* when it was."""

    message_id: str
    timeout_id: str
    destination: str
    body: bytes
    due: Micros
    """It must not be delivered before."""
    due_before: Micros = 0
    """A dispatcher with a lock from before *due* changed must not deliver it before this."""
    changed: int = 0
    saga: str = ""
    created: Micros = 0
    accepted: bool = False
    outcomes: list[LockedChunk] = field(default_factory=list)
    delivered: int = 0
    """First."""
    moved: int = 0
    fenced: int = -1
    """Found inside an interval that a dispatcher has locked; the lock may be on other keys."""
    last_chunk: LockedChunk | None = None
    may_fail: bool = False
    may_vanish: bool = False
    never: str = ""
    """Which answer said that it will not be delivered."""
    not_locked_after: int | None = None


class Ledger:
    """Judges each event when it happens; the first broken promise is kept in *broken*."""

    def __init__(self) -> None:
        self.records: dict[str, MessageRecord] = {}
        self.by_timeout: dict[str, MessageRecord] = {}
        self.broken: tuple[Promise, str, str] | None = None
        self.step = 0
        self.repeats = 0

    def sends(self, record: MessageRecord) -> None:
        self.records[record.message_id] = self.by_timeout[record.timeout_id] = record

    def moves(self, timeout_id: str) -> None:
        """Note that a change of its due time is committed."""
        self.by_timeout[timeout_id].moved = self.step

    def is_fenced(self, timeout_id: str) -> None:
        """Note that a change of it was refused for a claim that is in force, and locked."""
        self.by_timeout[timeout_id].fenced = self.step

    def takes(self, chunk: LockedChunk) -> None:
        """Note that the timeouts of *chunk* are to be dispatched."""
        for key in chunk.keys:
            self.by_timeout[key.id].last_chunk = chunk

    def ends(self, chunk: LockedChunk, now: Micros) -> None:
        """Note that the dispatch of *chunk* has ended."""
        chunk.interrupted = chunk.met_a_crash("", now)
        chunk.ended = self.step

    def delivers(
        self, message: Message, chunk: LockedChunk | None, queue: str, now: Micros
    ) -> None:
        """Judge a message that its destination's queue has accepted."""
        record = self.records.get(message.id)
        if record is None:
            self._breaks(Promise.SAME_ID, f"{message.id!r} is delivered, but was never sent", "")
            return
        related = message.headers.get(headers.RELATED_TO_TIMEOUT)
        if (
            related != record.timeout_id
            or message.body != record.body
            or queue != record.destination
        ):
            self._breaks(Promise.SAME_ID, f"{message.id} is not what was sent", message.id)
        if chunk is None:
            self._breaks(Promise.SAME_ID, f"{message.id} came past the dispatcher", message.id)
            return
        due = record.due if chunk.began >= record.changed else min(record.due, record.due_before)
        if now < due:
            self._breaks(Promise.NEVER_EARLY, f"{due - now} us before it is due", message.id)
        if record.never:
            self._breaks(Promise.CANCEL_IS_TRUE, f"sent after {record.never!r}", message.id)
        if record.not_locked_after is not None and chunk.began > record.not_locked_after:
            self._breaks(Promise.CANCEL_IS_TRUE, "locked after 'maybe sent' said no", message.id)
        record.delivered = record.delivered or self.step
        self._comes_to_an_end(record, chunk, now)

    def fails(self, message: Message, chunk: LockedChunk | None, now: Micros) -> None:
        """Judge a copy that the error queue has accepted."""
        record = self.records.get(message.id)
        if record is None or chunk is None or not record.may_fail:
            why = message.headers.get(headers.EXCEPTION_MESSAGE, "")
            self._breaks(Promise.NEVER_LOST, f"error queue without need: {why}", message.id)
            return
        self._comes_to_an_end(record, chunk, now)

    def _comes_to_an_end(self, record: MessageRecord, chunk: LockedChunk, now: Micros) -> None:
        record.outcomes.append(chunk)
        self.repeats += len(record.outcomes) > 1
        sound = sum(not one.met_a_crash(record.message_id, now) for one in record.outcomes)
        if sound > 1 or len(set(map(id, record.outcomes))) < len(record.outcomes):
            times = len(record.outcomes)
            self._breaks(
                Promise.NO_REPEAT_WITHOUT_CRASH,
                f"sent {times} times, {sound} of them by who met no crash",
                record.message_id,
            )

    def cancels(self, record: MessageRecord, answer: CancelResult | None, asked: int) -> None:
        """Judge the answer of a cancel that began at step *asked*; None: no answer came."""
        if answer is CancelResult.TOO_LATE:
            self._is_too_late(record, asked)
            return
        record.may_vanish = True
        if answer in (CancelResult.CANCELLED, CancelResult.WILL_BE_CANCELLED):
            if record.delivered:
                self._breaks(Promise.CANCEL_IS_TRUE, f"sent before {answer!r}", record.message_id)
            record.never = answer
        elif answer is CancelResult.MAYBE_SENT and record.not_locked_after is None:
            record.not_locked_after = self.step

    def changes(
        self,
        record: MessageRecord,
        due: Micros,
        answer: ChangeResult | None,
        asked: int,
        before: Micros,
    ) -> None:
        """Judge the answer of a reschedule; *before* is the due time until then."""
        if answer is ChangeResult.CHANGED and 0 < record.delivered < record.moved:
            self._breaks(Promise.CHANGE_IS_TRUE, "sent, and said to be changed", record.message_id)
        if answer is ChangeResult.TOO_LATE:
            self._is_too_late(record, asked)
        if answer in (ChangeResult.CHANGED, ChangeResult.MAYBE_SENT):
            earlier = record.due_before if record.changed else before
            record.due, record.due_before = due, min(due, before, earlier)
            record.changed = self.step if answer is ChangeResult.MAYBE_SENT else 0
        elif answer is not None:
            record.due = before
        if answer is None:
            record.due = min(due, before)

    def _is_too_late(self, record: MessageRecord, asked: int) -> None:
        chunk = record.last_chunk
        is_locked = chunk is not None and (chunk.ended is None or chunk.ended >= asked)
        if not (record.outcomes or is_locked or record.fenced >= asked):
            self._breaks(
                Promise.CANCEL_IS_TRUE, "too late, but it was never sent", record.message_id
            )

    def closes(self, pending: Mapping[str, str]) -> None:
        """Judge the quiet end; *pending* names the open messages and their places."""
        for name, where in pending.items():
            self._breaks(Promise.NEVER_LOST, f"still {where} at the quiet end", name)
        for record in self.records.values():
            if record.accepted and not record.outcomes and not record.may_vanish:
                self._breaks(Promise.NEVER_LOST, "accepted, and never arrives", record.message_id)

    def surprise(self, what: str) -> None:
        """Record an event that no simulated fault explains."""
        self._breaks(Promise.NOBODY_WAITS_FOR_EVER, what, "")

    def _breaks(self, promise: Promise, why: str, message_id: str) -> None:
        if self.broken is None:
            self.broken = (promise, why, message_id)
