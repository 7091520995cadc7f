"""Taking timeouts in hand: by row locks over the publish, or by a fence on the claim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from timeoutmgr.contracts import Key, LockedTimeouts, Outcome, Timeout
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros

from .database import CLAIM_TIME
from .ledger import Hand

if TYPE_CHECKING:
    from .store import SimStore


class LockedRows:
    """Timeouts in hand until they are closed, under the claim *token*."""

    def __init__(self, store: SimStore, hand: Hand, token: str, passed_by: Sequence[Key]) -> None:
        rows = store.database.rows
        self.timeouts: Sequence[Timeout] = [rows[key].timeout for key in hand.keys]
        self.settled = False
        self._store = store
        self._hand = hand
        self._token = token
        self._passed_by = passed_by

    def now(self) -> Micros:
        """Return the database's time."""
        return self._store.world.timeline.now

    def close(self, outcomes: Sequence[Outcome]) -> None:
        """Record *outcomes* and commit."""
        store, hand = self._store, self._hand
        if hand.cut_off:
            raise StorageUnavailable("the connection was lost")

        def work() -> None:
            store.database.record(outcomes)
            store.database.unlock(hand)
            self.end_claim()
            store.calls.note("closes", *(one.key.id for one in outcomes))

        try:
            store.commit(work)
        except StorageUnavailable:
            hand.interrupted = True
            raise
        self.settled = True

    def end_claim(self) -> None:
        """End the claim, unless another dispatcher has locked its other rows."""
        database = self._store.database
        if not any(key in database.rows for key in self._passed_by):
            database.claims.pop(self._token, None)

    def give_back(self) -> None:
        """End the claim of rows that were locked and not closed: they are maybe sent."""
        store, hand = self._store, self._hand

        def work() -> None:
            store.database.mark(hand.keys)
            self.end_claim()

        store.database.unlock(hand)
        try:
            store.commit(work)
        except StorageUnavailable:
            return  # the claim ends by itself, a little later
        self.settled = True


@contextmanager
def taking(
    store: SimStore, token: str, keys: Sequence[Key], ahead: Micros
) -> Iterator[LockedTimeouts]:
    """Lock the rows of *keys* that are stored, due *ahead* from now, and not locked."""
    calls = store.calls
    take = _lock if store.database.row_locks else _fence
    taken = take(store, token, keys, ahead)
    hand = calls.hand
    assert hand is not None, "what is taken is in hand"
    try:
        yield taken
    finally:
        # Nothing of this where the process was killed: it is not there to do it.
        if not calls.process.dead and not taken.settled:
            taken.give_back()
        store.world.ledger.ends(hand, store.world.timeline.now)
        calls.hand = None


def _in_hand(store: SimStore, keys: Sequence[Key], token: str) -> Hand:
    ledger, calls, claim = store.world.ledger, store.calls, store.database.claims.get(token)
    fenced = claim is not None and not store.database.row_locks
    hand = Hand(calls.process, keys, 0, claim.until if claim and fenced else None)
    calls.note(f"takes {token}", *(key.id for key in keys))
    hand.began = ledger.step
    ledger.takes(hand)
    calls.hand = hand
    return hand


def _lock(store: SimStore, token: str, keys: Sequence[Key], ahead: Micros) -> LockedRows:
    """Lock the unlocked rows; if no claim has *token*, claim them first."""
    database, calls = store.database, store.calls
    calls.before()
    calls.slow("store.slow")
    store.reach()
    mine = [
        key
        for key in database.due(keys, store.world.timeline.now + ahead)
        if database.rows[key].holder is None
    ]
    locked = set(mine)
    passed_by = [
        key for key in set(keys) - locked if key not in database.rows or database.rows[key].holder
    ]
    hand = _in_hand(store, mine, token)
    for key in mine:
        database.rows[key].holder = hand
    try:
        if mine and token not in database.claims:
            token, passed_by = store.commit(lambda: _claim_now(store, mine)), []
        calls.after()
    except BaseException:
        database.unlock(hand)
        store.world.ledger.ends(hand, store.world.timeline.now)
        calls.hand = None
        raise
    return LockedRows(store, hand, token, passed_by)


def _claim_now(store: SimStore, keys: Sequence[Key]) -> str:
    return store.database.claim(keys, store.calls.process, store.world.timeline.now, taken=False)


def _fence(store: SimStore, token: str, keys: Sequence[Key], ahead: Micros) -> LockedRows:
    """Make the claim *token* ours for good, if it is nobody's yet."""
    database, calls = store.database, store.calls

    def work() -> tuple[str, list[Key], Hand]:
        now = store.world.timeline.now
        fenced, mine = token, database.due(keys, now + ahead)
        if token:
            if not database.may_be_taken(token):
                fenced, mine = "", []
            else:
                claim = database.claims[token]
                claim.owner, claim.until, claim.taken = calls.process, now + CLAIM_TIME, True
        else:
            mine = [key for key in mine if not database.covering(key)][:1]
            fenced = database.claim(mine, calls.process, now, taken=True) if mine else ""
        return fenced, mine, _in_hand(store, mine, fenced)

    try:
        fenced, _, hand = store.commit(work)
    except BaseException:
        # A fence that may have been raised protects nothing: nothing is sent behind it.
        if calls.hand is not None:
            store.world.ledger.ends(calls.hand, store.world.timeline.now)
            calls.hand = None
        raise
    return LockedRows(store, hand, fenced, [])
