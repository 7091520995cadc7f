"""The model: the right content of a timeout store, as plain dictionaries and by plain rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple

from tests.persistence.making import SECOND, timeout
from timeoutmgr.contracts import (
    Key,
    OnConflict,
    Outcome,
    OutcomeKind,
    RepeatKind,
    Timeout,
    TimeoutState,
)
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.labels import labels_of

CLAIM_TIME: Final = 60 * SECOND
RETENTION: Final = 30 * 24 * 3_600 * SECOND


class Doubt(IntEnum):
    """Whether a pending timeout may have been sent already."""

    NONE = 0
    POSSIBLE = 1
    """It was claimed: a store that does not record the lock cannot know."""
    SURE = 2
    """It was locked for dispatch, and its outcome was never recorded."""


class Content(NamedTuple):
    """The fields that tell two messages apart; *due* only if the sender gave it."""

    destination: str
    body: bytes
    labels: tuple[str, ...]
    due: Micros | None

    def is_same(self, other: Content) -> bool:
        is_due_alike = None in (self.due, other.due) or self.due == other.due
        return is_due_alike and self[:-1] == other[:-1]


@dataclass(slots=True)
class Known:
    """The fate of an id; *timeout* is its row while it is pending."""

    timeout: Timeout
    state: TimeoutState = TimeoutState.PENDING
    doubt: Doubt = Doubt.NONE
    closed_at: Micros = 0
    version: int = 0
    contents: tuple[Content, ...] = ()
    """Of the message that counts, and of the first; of none while it is awaited."""
    replaced_at: Micros | None = None

    @property
    def awaits_first(self) -> bool:
        """Whether the message counts that overtook the message which it replaces."""
        return self.replaced_at is not None and len(self.contents) == 1


@dataclass(slots=True, eq=False)
class Claim:
    """Keys that were handed out under *token*, and the interval that they span."""

    token: str
    keys: frozenset[Key]
    owner: int
    until: Micros
    locked: bool = False
    sure: bool = True
    """False where a store may have ended it already, or may have kept another instead."""

    def spans(self, key: Key) -> bool:
        return min(self.keys) <= key <= max(self.keys)


@dataclass(slots=True, eq=False)
class KeyLock:
    """Keys that a dispatcher has locked; *until* ends a lock that is only a fenced claim."""

    tokens: tuple[str, ...]
    keys: tuple[Key, ...]
    owner: int
    until: Micros | None
    passed_by: bool
    """Another dispatcher had locked some of the keys that it asked for."""
    strange: bool
    """No claim keeps its keys from being claimed: it was made under a claim on other keys, or
    another lock under the same token has ended the claim."""


@dataclass(slots=True)
class Model:
    """One endpoint's timeouts. *fenced*: the store has no row locks and goes by fences."""

    fenced: bool
    known: dict[str, Known] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    locks: list[KeyLock] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)
    history: list[tuple[str, str, Micros]] = field(default_factory=list)

    # --- content ---

    def pending(self) -> list[Timeout]:
        rows = [known.timeout for known in self.known.values() if self._is_pending(known)]
        return sorted(rows, key=lambda row: (row.key.due, row.id.encode()))

    def row(self, key: Key) -> Known | None:
        known = self.known.get(key.id)
        there = known is not None and self._is_pending(known) and known.timeout.key == key
        return known if there else None

    def claimable(self, now: Micros) -> list[Key]:
        """Return the keys that are due, may be tried, and are not locked."""
        keys = [row.key for row in self.pending()]
        return [key for key in keys if self.is_ripe(key, now) and not self.is_locked(key, now)]

    def is_ripe(self, key: Key, now: Micros) -> bool:
        row = self.row(key)
        return row is not None and key.due <= now

    def is_locked(self, key: Key, now: Micros) -> bool:
        return any(key in lock.keys for lock in self.locks if self.holds(lock, now))

    def holds(self, lock: KeyLock, now: Micros) -> bool:
        return lock.until is None or now < lock.until

    def alive(self, claim: Claim, now: Micros) -> bool:
        return now < claim.until and claim.owner not in self.dead

    def covering(self, key: Key) -> list[Claim]:
        return [claim for claim in self.claims.values() if claim.spans(key)]

    def may_cover(self, key: Key, now: Micros) -> bool:
        """Return whether a claim that is, or may be, in force covers *key*."""
        return any(
            self.alive(claim, now) or self._spans_a_lock(claim, now) for claim in self.covering(key)
        )

    def doubt(self, key: Key) -> Doubt:
        row = self.row(key)
        assert row is not None
        claimed = Doubt.POSSIBLE if self.covering(key) else Doubt.NONE
        # Locked still, though the claim around it has lapsed.
        held = any(key in lock.keys for lock in self.locks)
        return max(row.doubt, claimed, Doubt.SURE if held else Doubt.NONE)

    def events(self, now: Micros) -> Counter[str]:
        """Return the outcomes of the last 24 hours."""
        return Counter(event for _, event, at in self.history if at > now - 24 * 3_600 * SECOND)

    # --- changes ---

    def repeat(self, one: Timeout, *, too_late: bool) -> RepeatKind | None:
        """Return the kind of repeat of a stored id; *too_late*: a pending row is not replaced."""
        known = self.known.get(one.id)
        if known is None:
            return None
        if not known.contents:
            return RepeatKind.CANCELLED
        asks = one.on_conflict is OnConflict.REPLACE
        if asks and self._is_pending(known) and not too_late:
            if one.created != known.timeout.created:
                is_later = one.created > known.timeout.created
                return RepeatKind.REPLACED if is_later else RepeatKind.SUPERSEDED
        elif asks and known.replaced_at is not None and one.created < known.replaced_at:
            return RepeatKind.SUPERSEDED
        if any(content_of(one).is_same(content) for content in known.contents):
            return RepeatKind.DUPLICATE
        is_first = one.on_conflict is OnConflict.KEEP and known.awaits_first
        if is_first and known.replaced_at is not None and one.created < known.replaced_at:
            return RepeatKind.SUPERSEDED
        return RepeatKind.CONFLICT

    def stored(self, one: Timeout, kind: RepeatKind | None, now: Micros) -> None:
        """Note that *one* was stored, or has become a repeat of *kind*."""
        content = content_of(one)
        if kind is None:
            self.known[one.id] = Known(one, contents=(content,), replaced_at=_replaces_at(one))
        known = self.known[one.id]
        if kind is RepeatKind.CANCELLED:
            known.contents, known.closed_at = (content,), now
            known.replaced_at = _replaces_at(one)
            self.history.append((one.id, "cancelled", now))
        elif kind is RepeatKind.REPLACED:
            doubt = self.doubt(known.timeout.key)
            first = () if known.awaits_first else known.contents[-1:]
            known.timeout, known.doubt = one, doubt
            known.contents, known.replaced_at = (content, *first), one.created
        elif kind is RepeatKind.SUPERSEDED and one.on_conflict is OnConflict.KEEP:
            known.contents += (content,)

    def claimed(self, token: str, keys: Sequence[Key], owner: int, now: Micros) -> None:
        for claim in [one for one in self.claims.values() if not self.alive(one, now)]:
            if not keys:
                claim.sure = False  # it may have been ended, or not be looked at yet
            elif not self._spans_a_lock(claim, now) or self.fenced:
                self._flag(claim, sure=claim.sure and (claim.locked or not self.fenced))
                del self.claims[claim.token]
        if keys:
            self.claims[token] = Claim(token, frozenset(keys), owner, now + CLAIM_TIME)

    def locked(
        self, token: str, asked: Sequence[Key], keys: Sequence[Key], owner: int, now: Micros
    ) -> KeyLock:
        """Record that *keys*, of all keys *asked* for, are locked now."""
        tokens = [token]
        claim = self.claims.get(token)
        passed_by = any(self.is_locked(key, now) for key in asked)
        strange = claim is not None and not claim.keys.issuperset(keys)
        if claim is not None and self.fenced:
            if claim.locked:
                tokens = []
            else:
                # From now on the dispatcher's session lock counts. Whether a claim whose owner had
                # ended was sent is not known.
                claim.sure = claim.sure and (bool(keys) or self.alive(claim, now))
                claim.locked, claim.owner, claim.until = True, owner, now + CLAIM_TIME
        elif keys and (claim is None or not self.alive(claim, now)):
            # Claimed on the spot, unless the store has the claim that ended still.
            name = f"{len(self.claims)} on the spot after {token}"
            tokens.append(name)
            self.claims[name] = Claim(
                name,
                frozenset(keys),
                owner,
                now + CLAIM_TIME,
                locked=True,
                sure=claim is None,
            )
        until = now + CLAIM_TIME if self.fenced else None
        lock = KeyLock(tuple(tokens), tuple(keys), owner, until, passed_by, strange)
        self.locks.append(lock)
        return lock

    def closed(self, lock: KeyLock, outcomes: Sequence[Outcome]) -> None:
        self.locks.remove(lock)
        for outcome in outcomes:
            row = self.row(outcome.key)
            if outcome.kind is OutcomeKind.RETRY:
                if row is not None:
                    row.timeout = replace(
                        row.timeout,
                        attempts=row.timeout.attempts + 1,
                        next_try=max(outcome.next_try, outcome.key.due),
                    )
                    row.doubt = Doubt.SURE if outcome.maybe_sent else row.doubt
                continue
            state = TimeoutState(outcome.kind.value)
            self.history.append((outcome.key.id, state.value, outcome.at))
            if row is not None:  # else it was changed after the fence fell; sent is sent
                row.state, row.closed_at = state, outcome.at
        self._end_claims_of(lock)

    def left(self, lock: KeyLock) -> None:
        self.locks.remove(lock)
        for key in lock.keys:
            row = self.row(key)
            if row is not None:
                row.doubt = Doubt.SURE
        self._end_claims_of(lock)

    def released(self, token: str, *, maybe_sent: bool, now: Micros) -> None:
        claim = self.claims.get(token)
        if claim is None:
            return
        if maybe_sent:
            if self._spans_a_lock(claim, now) or (self.fenced and claim.locked):
                return  # a dispatcher may be at work under it
            self._flag(claim, sure=claim.sure and not self.fenced)
        del self.claims[token]

    def cancelled(self, timeout_id: str, *, doubt: Doubt, now: Micros) -> None:
        row = self.known.get(timeout_id)
        if row is None:  # barred: the store message may still be on its way
            row = self.known[timeout_id] = Known(timeout(timeout_id, 0))
        else:
            self.history.append((timeout_id, "cancelled", now))
        row.state, row.closed_at, row.doubt = TimeoutState.CANCELLED, now, doubt

    def moved(self, timeout_id: str, due: Micros, *, doubt: Doubt) -> None:
        row = self.known[timeout_id]
        row.timeout = replace(row.timeout, due=due, next_try=0)
        row.doubt, row.version = doubt, row.version + 1

    def purged(self, now: Micros) -> int:
        """Delete rows past their retention; return the numbers of tombstones and history rows."""
        before = now - RETENTION
        old = [
            name
            for name, known in self.known.items()
            if not self._is_pending(known) and known.closed_at < before
        ]
        for name in old:
            del self.known[name]
        kept = [entry for entry in self.history if entry[2] >= before]
        removed = len(old) + len(self.history) - len(kept)
        self.history = kept
        return removed

    def _end_claims_of(self, lock: KeyLock) -> None:
        for claim in [self.claims[token] for token in lock.tokens if token in self.claims]:
            if lock.passed_by and not self.fenced:
                claim.sure = False  # it stays: another transaction still locks the rows passed by
            else:
                del self.claims[claim.token]
                for other in self.locks:
                    other.strange = other.strange or claim.token in other.tokens

    def _flag(self, claim: Claim, *, sure: bool) -> None:
        """Flag the rows that *claim* covers as maybe sent."""
        for key in [one.key for one in self.pending() if claim.spans(one.key)]:
            row = self.row(key)
            assert row is not None
            named = sure and key in claim.keys
            row.doubt = max(row.doubt, Doubt.SURE if named else Doubt.POSSIBLE)

    def _spans_a_lock(self, claim: Claim, now: Micros) -> bool:
        held = (key for lock in self.locks if self.holds(lock, now) for key in lock.keys)
        return any(claim.spans(key) for key in held)

    @staticmethod
    def _is_pending(known: Known) -> bool:
        return known.state is TimeoutState.PENDING


def content_of(one: Timeout) -> Content:
    labels = labels_of(one.message)
    return Content(one.destination, one.message.body, labels, one.due if one.due_given else None)


def _replaces_at(one: Timeout) -> Micros | None:
    return one.created if one.on_conflict is OnConflict.REPLACE else None
