"""The machine: the calls of processes to a store in any order, each answer held to the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.persistence.making import SECOND, timeout
from tests.persistence.stateful.model import CLAIM_TIME, RETENTION, Doubt, KeyLock, Model
from tests.persistence.stateful.subjects import PROCESSES, Subject
from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Chunk,
    Key,
    LockedTimeouts,
    OnConflict,
    Outcome,
    OutcomeKind,
    Timeout,
    TimeoutFilter,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.labels import label_headers, labels_of
from timeoutmgr.message.message import with_headers

ALL: Final = TimeoutFilter()
HOUR: Final = 3_600 * SECOND
_KEPT_CHUNKS: Final = 6

IDS: Final = st.sampled_from(["a", "b", "A", "b ", "ä"])
OFFSETS: Final = st.sampled_from([0, -1, -2, 0, -HOUR, 1, SECOND, HOUR])
SAGAS: Final = st.sampled_from([None, None, "s", "S"])
PROCESS: Final = st.integers(0, PROCESSES - 1)
NUMBER: Final = st.integers(0, 11)
LIMIT: Final = st.sampled_from([100, 2, 1])
LABELS: Final = st.sampled_from([(), (), ("t=1",), ("t=1", "u=2"), ("u=2",)])
CONFLICTS: Final = st.sampled_from([OnConflict.KEEP, OnConflict.KEEP, OnConflict.REPLACE])
ORDER: Final = st.tuples(IDS, OFFSETS, SAGAS, CONFLICTS, st.sampled_from([b"1", b"2"]), LABELS)
ENDS: Final = st.lists(
    st.sampled_from(["dispatched", "dispatched", "failed", "retry", "later", "unknown", "nothing"]),
    min_size=1,
    max_size=4,
)


class StoreMachine(RuleBasedStateMachine):
    """Two processes at one store; a step is one call, so that every answer has one right form."""

    def __init__(self, make: Callable[[], Subject]) -> None:
        super().__init__()
        self.subject = make()
        self.clock = self.subject.clock
        self.model = Model(fenced=self.subject.fenced)
        self.chunks: list[tuple[str, tuple[Key, ...], bool]] = []
        self.open: list[tuple[KeyLock, AbstractContextManager[LockedTimeouts], LockedTimeouts]] = []
        self.owners = list(range(PROCESSES))

    @property
    def now(self) -> Micros:
        return self.clock.at

    def store(self, process: int) -> TimeoutStore:
        return self.subject.store(process)

    def teardown(self) -> None:
        for _, context, _ in self.open:
            context.__exit__(None, None, None)
        if self.subject.mortal:
            # Each life is a connection, and a search for the shortest example makes hundreds.
            for process in range(PROCESSES):
                self.subject.kill(process)

    # --- time, and claims that end with it ---

    @rule(by=st.sampled_from([CLAIM_TIME, 1, SECOND, CLAIM_TIME - 1, HOUR, RETENTION + 1]))
    def time_goes_on(self, by: Micros) -> None:
        self.clock.at += by

    @precondition(lambda self: self.subject.mortal)
    @rule(process=PROCESS)
    def a_process_dies(self, process: int) -> None:
        if any(lock.owner == self.owners[process] for lock, _, _ in self.open):
            return  # nothing here can break its connection
        self.subject.kill(process)
        self.model.dead.add(self.owners[process])
        self.owners[process] = max(self.owners) + 1

    @rule(process=PROCESS)
    def old_things_are_purged(self, process: int) -> None:
        assert self.store(process).purge() == self.model.purged(self.now)

    # --- storing and changing ---

    @rule(process=PROCESS, orders=st.lists(ORDER, min_size=1, max_size=5))
    def timeouts_are_stored(
        self,
        process: int,
        orders: list[tuple[str, Micros, str | None, OnConflict, bytes, Sequence[str]]],
    ) -> None:
        self.store_batch(
            process,
            [
                replace(
                    labelled(timeout(name, self.now + offset, saga=saga, body=body), labels),
                    on_conflict=on_conflict,
                    due_given=offset in {0, HOUR},
                )
                for name, offset, saga, on_conflict, body, labels in orders
            ],
        )

    @rule(process=PROCESS, which=NUMBER)
    def a_store_message_comes_again(self, process: int, which: int) -> None:
        known = list(self.model.known.values())
        if known:
            self.store_batch(process, [known[which % len(known)].timeout])

    @rule(process=PROCESS, name=IDS)
    def one_is_cancelled(self, process: int, name: str) -> None:
        expected = self.expected_cancel(name)
        result = self.store(process).cancel(name)

        assert result in expected, f"cancel of {name!r}: {result}, expected one of {expected}"
        known = self.model.known.get(name)
        if result is not CancelResult.TOO_LATE and (
            known is None or known.state is TimeoutState.PENDING
        ):
            doubt = Doubt.SURE if result is CancelResult.MAYBE_SENT else Doubt.NONE
            self.model.cancelled(name, doubt=doubt, now=self.now)

    @rule(process=PROCESS, saga=st.sampled_from(["s", "S"]), until=st.none() | OFFSETS)
    def a_saga_is_cancelled(self, process: int, saga: str, until: Micros | None) -> None:
        sent_until = None if until is None else self.now + until
        of_saga = [
            row.id
            for row in self.model.pending()
            if row.saga_id == saga and (sent_until is None or row.created <= sent_until)
        ]
        expected = {name: self.expected_cancel(name) for name in of_saga}
        cancelled = self.store(process).cancel_saga(saga, sent_until=sent_until)

        removed = [name for name in of_saga if self.store(0).key_of(name) is None]
        assert sorted(cancelled) == sorted(removed)
        for name in of_saga:
            too_late = {CancelResult.TOO_LATE}
            assert expected[name] - too_late if name in removed else expected[name] & too_late
            if name in removed:
                answer = self.store(0).cancel(name)
                assert answer in expected[name] - too_late
                doubt = Doubt.SURE if answer is CancelResult.MAYBE_SENT else Doubt.NONE
                self.model.cancelled(name, doubt=doubt, now=self.now)

    @rule(process=PROCESS, name=IDS, offset=OFFSETS)
    def one_is_rescheduled(self, process: int, name: str, offset: Micros) -> None:
        expected = self.expected_change(name)
        result = self.store(process).reschedule(name, self.now + offset)

        assert result in expected, f"reschedule of {name!r}: {result}, expected one of {expected}"
        if result in (ChangeResult.CHANGED, ChangeResult.MAYBE_SENT):
            doubt = Doubt.SURE if result is ChangeResult.MAYBE_SENT else Doubt.NONE
            self.model.moved(name, self.now + offset, doubt=doubt)

    # --- claiming ---

    @rule(process=PROCESS, limit=LIMIT)
    def due_ones_are_claimed(self, process: int, limit: int) -> None:
        before = self.model.claimable(self.now)
        chunk = self.store(process).claim(self.now, limit, f"poller of {process}")

        self.check_claim(chunk, limit, before)
        self.model.claimed(chunk.token, chunk.keys, self.owners[process], self.now)
        if chunk.keys:
            self.chunks = [*self.chunks, (chunk.token, chunk.keys, False)][-_KEPT_CHUNKS:]

    @rule(process=PROCESS, limit=LIMIT, ends=ENDS)
    def due_ones_are_claimed_and_dispatched(
        self, process: int, limit: int, ends: list[str]
    ) -> None:
        chunks = self.chunks
        self.due_ones_are_claimed(process, limit)
        if self.chunks is not chunks:
            self.a_chunk_is_locked(process, len(self.chunks) - 1, "all")
            self.a_lock_is_closed(len(self.open) - 1, ends)

    @rule(process=PROCESS, which=NUMBER, maybe_sent=st.booleans())
    def a_claim_is_released(self, process: int, which: int, maybe_sent: bool) -> None:
        if not self.chunks:
            return
        token, keys, passed_on = self.chunks[which % len(self.chunks)]
        if passed_on or any(self.model.is_locked(key, self.now) for key in keys):
            maybe_sent = True  # surely passed on
        self.store(process).release(token, maybe_sent=maybe_sent)
        self.model.released(token, maybe_sent=maybe_sent, now=self.now)

    # --- dispatching ---

    @rule(process=PROCESS, which=NUMBER, part=st.sampled_from(["all", "all", "first", "rest"]))
    def a_chunk_is_locked(self, process: int, which: int, part: str) -> None:
        if not self.chunks:
            return
        token, keys, _ = self.chunks[which % len(self.chunks)]
        self.chunks[which % len(self.chunks)] = (token, keys, True)
        chosen = {"all": keys, "first": keys[:1], "rest": keys[1:]}[part]
        self.lock_keys(process, token, chosen)

    @rule(process=PROCESS, which=NUMBER, under=NUMBER)
    def a_chunk_is_locked_under_a_foreign_token(self, process: int, which: int, under: int) -> None:
        if not self.chunks:
            return
        _, keys, _ = self.chunks[which % len(self.chunks)]
        token, _, _ = self.chunks[under % len(self.chunks)]
        self.lock_keys(process, token if under < 6 and not self.model.fenced else "nobody's", keys)

    @rule(process=PROCESS, name=IDS)
    def a_timeout_is_locked_by_its_id(self, process: int, name: str) -> None:
        key = self.store(process).key_of(name)
        if key is not None:
            self.lock_keys(process, "", [key])

    @precondition(lambda self: self.open)
    @rule(which=NUMBER, ends=ENDS)
    def a_lock_is_closed(self, which: int, ends: list[str]) -> None:
        lock, context, locked = self.open.pop(which % len(self.open))
        outcomes = [
            outcome
            for number, key in enumerate(lock.keys)
            if (outcome := self.outcome(key, ends[number % len(ends)])) is not None
        ]
        locked.close(outcomes)
        context.__exit__(None, None, None)
        self.model.closed(lock, outcomes)
        for key in lock.keys:
            self.check_one(self.store(0), key.id)

    @precondition(lambda self: self.open)
    @rule(which=NUMBER)
    def a_lock_is_left_without_a_word(self, which: int) -> None:
        lock, context, _ = self.open.pop(which % len(self.open))
        context.__exit__(None, None, None)
        self.model.left(lock)

    # --- looking ---

    @rule(
        process=PROCESS,
        name=IDS,
        saga=SAGAS,
        from_=OFFSETS,
        to=st.none() | OFFSETS,
        labels=LABELS,
    )
    def some_are_looked_at(
        self,
        process: int,
        name: str,
        saga: str | None,
        from_: Micros,
        to: Micros | None,
        labels: tuple[str, ...],
    ) -> None:
        self.check_one(self.store(process), name)
        which = TimeoutFilter(
            saga_id=saga,
            due_from=self.now + from_,
            due_before=None if to is None else self.now + max(to, from_ + 1),
            labels=labels,
        )
        self.check_pages(self.store(process), which)
        self.check_numbers(self.store(process))

    # --- invariants ---

    @invariant()
    def the_list_is_the_models(self) -> None:
        rows = self.model.pending()
        store = self.store(0)
        assert store.list(ALL, limit=1_000) == rows
        assert store.next_due() == min((row.key.due for row in rows), default=None)

    @invariant()
    def the_history_tells_every_outcome(self) -> None:
        found = self.subject.history()
        if found is not None:
            assert sorted(found) == sorted(self.model.history)

    @invariant()
    def the_rows_of_labels_are_those_of_pending_timeouts(self) -> None:
        found = self.subject.labels()
        if found is not None:
            assert sorted(found) == sorted(
                (row.key.due, row.id, label)
                for row in self.model.pending()
                for label in labels_of(row.message)
            )

    # --- checks ---

    def check_one(self, store: TimeoutStore, name: str) -> None:
        known = self.model.known.get(name)
        pending = known is not None and known.state is TimeoutState.PENDING
        row = known.timeout if known is not None and pending else None
        assert store.find(name) == (None if known is None else (known.state, row))
        assert store.key_of(name) == (row and row.key)

    def store_batch(self, process: int, batch: list[Timeout]) -> None:
        repeats = self.store(process).store_many(batch)
        kinds = {id(repeat.timeout): repeat.kind for repeat in repeats}
        for one in batch:
            known = self.model.known.get(one.id)
            pending = known is not None and known.state is TimeoutState.PENDING
            answers = self.expected_cancel(one.id) if pending else {CancelResult.TOO_LATE}
            late = {answer is CancelResult.TOO_LATE for answer in answers}
            expected = {self.model.repeat(one, too_late=each) for each in late}
            kind = kinds.get(id(one))
            assert kind in expected, f"{one.id!r} is a {kind}, expected one of {expected}"
            self.model.stored(one, kind, self.now)

    def check_pages(self, store: TimeoutStore, which: TimeoutFilter) -> None:
        expected = [row for row in self.model.pending() if _matches(which, row)]
        found: list[Timeout] = []
        while page := store.list(which, limit=2, after=found[-1].key if found else None):
            found += page
        assert found == expected
        assert store.count(which) == len(expected)

    def check_numbers(self, store: TimeoutStore) -> None:
        rows, found = self.model.pending(), store.statistics()
        assert found.pending == len(rows)
        assert found.due == sum(row.due <= self.now for row in rows)
        assert found.oldest_due == min((row.due for row in rows), default=None)
        assert dict(found.outcomes) == dict(self.model.events(self.now))

    def lock_keys(self, process: int, token: str, keys: Sequence[Key]) -> None:
        context = self.store(process).lock_for_dispatch(token, keys)
        locked = context.__enter__()
        found = [one.key for one in locked.timeouts]
        try:
            self.check_locked(token, keys, list(locked.timeouts))
        except BaseException:
            context.__exit__(None, None, None)
            raise
        lock = self.model.locked(token, keys, found, self.owners[process], self.now)
        self.open.append((lock, context, locked))

    def check_locked(self, token: str, keys: Sequence[Key], locked: list[Timeout]) -> None:
        found = [one.key for one in locked]
        free = set(self.model.claimable(self.now))
        ripe = sorted(key for key in set(keys) if key in free)
        assert set(found) <= free, "early, locked elsewhere, or removed"
        rows = [self.model.row(key) for key in found]
        assert locked == [row.timeout for row in rows if row is not None]
        if not self.model.fenced:
            assert found == ripe
            return
        claim = self.model.claims.get(token)
        if token and claim is not None and not claim.locked:
            sure = claim.sure and self.model.alive(claim, self.now)
            assert found == ripe or (not found and not sure)
        elif token:
            assert not found, "under a claim that is over, or never was"
        else:
            covered = [self.model.covering(key) for key in keys]
            assert found == ripe or (not found and any(covered))
            alive = [
                any(self.model.alive(c, self.now) and c.sure for c in some) for some in covered
            ]
            assert not found or not any(alive), "a claim on it is in force"

    def check_claim(self, chunk: Chunk, limit: int, free: Sequence[Key]) -> None:
        keys = list(chunk.keys)
        assert bool(chunk.token) == bool(keys)
        assert len(keys) <= limit
        assert keys == sorted(keys, key=_by_bytes)
        for key in keys:
            assert self.model.is_ripe(key, self.now), f"{key} is early, or removed"
            held = [lock for lock in self.model.locks if key in lock.keys]
            assert key in free or all(lock.strange for lock in held), f"{key} is locked"
            claims = [claim for claim in self.model.claims.values() if key in claim.keys]
            alive = [one for one in claims if one.sure and self.model.alive(one, self.now)]
            assert not alive, f"{key} was claimed already, and that claim is in force"
        open_ = [key for key in free if not self.model.may_cover(key, self.now)]
        if open_:
            assert keys, f"{open_} are due and free"
            assert _by_bytes(keys[0]) <= _by_bytes(open_[0]), f"{open_[0]} is older"
            passed = [k for k in open_ if k not in keys and _by_bytes(k) < _by_bytes(keys[-1])]
            assert not passed, f"{passed} were passed by"
        self.check_next_due(chunk, limit, open_)

    def check_next_due(self, chunk: Chunk, limit: int, free: Sequence[Key]) -> None:
        left = [row for row in self.model.pending() if row.key not in chunk.keys]
        if not left:
            return
        assert chunk.next_due is not None, "there is more, and no instant to look for it"
        latest = []
        for row in left:
            ripe = row.key.due
            latest.append(ripe if ripe > self.now or row.key in free else self.now + CLAIM_TIME)
        # With an overdue row the next poll is at once: any past instant says so.
        assert chunk.next_due <= max(min(latest), self.now), f"looks again after {min(latest)}"

    def expected_cancel(self, name: str) -> set[CancelResult]:
        known = self.model.known.get(name)
        if known is None:
            return {CancelResult.WILL_BE_CANCELLED}
        if not known.contents:
            return {CancelResult.WILL_BE_CANCELLED}
        if known.state is TimeoutState.CANCELLED:
            sent = known.doubt is Doubt.SURE
            return {CancelResult.MAYBE_SENT if sent else CancelResult.CANCELLED}
        if known.state is not TimeoutState.PENDING or self.model.is_locked(
            known.timeout.key, self.now
        ):
            return {CancelResult.TOO_LATE}
        answers = {
            Doubt.NONE: {CancelResult.CANCELLED},
            Doubt.POSSIBLE: {CancelResult.CANCELLED, CancelResult.MAYBE_SENT},
            Doubt.SURE: {CancelResult.MAYBE_SENT},
        }[self.model.doubt(known.timeout.key)]
        return answers | (
            {CancelResult.TOO_LATE} if self.is_fenced_in(known.timeout.key) else set()
        )

    def expected_change(self, name: str) -> set[ChangeResult]:
        known = self.model.known.get(name)
        if known is None or known.state is TimeoutState.CANCELLED:
            return {ChangeResult.UNKNOWN}
        same = {
            CancelResult.TOO_LATE: ChangeResult.TOO_LATE,
            CancelResult.CANCELLED: ChangeResult.CHANGED,
            CancelResult.MAYBE_SENT: ChangeResult.MAYBE_SENT,
        }
        return {same[result] for result in self.expected_cancel(name)}

    def is_fenced_in(self, key: Key) -> bool:
        """Return whether *key* lies in another claim's interval, if the store fences intervals."""
        claims = self.model.covering(key) if self.model.fenced else []
        return any(claim.locked and self.model.alive(claim, self.now) for claim in claims)

    def outcome(self, key: Key, end: str) -> Outcome | None:
        if end == "nothing":
            return None
        kinds = {"dispatched": OutcomeKind.DISPATCHED, "failed": OutcomeKind.FAILED}
        return Outcome(
            key=key,
            kind=kinds.get(end, OutcomeKind.RETRY),
            at=self.now,
            next_try=self.now + (SECOND if end == "later" else 0),
            maybe_sent=end == "unknown",
        )


def labelled(one: Timeout, labels: Sequence[str]) -> Timeout:
    """Return *one* with *labels*."""
    given = label_headers(dict(each.split("=") for each in labels))
    return replace(one, message=with_headers(one.message, {**one.message.headers, **given}))


def _by_bytes(key: Key) -> tuple[Micros, bytes]:
    return key.due, key.id.encode()


def _matches(which: TimeoutFilter, row: Timeout) -> bool:
    return (
        which.saga_id in {None, row.saga_id}
        and (which.due_from is None or row.due >= which.due_from)
        and (which.due_before is None or row.due < which.due_before)
        and set(which.labels) <= set(labels_of(row.message))
    )
