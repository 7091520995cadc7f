"""The dispatch lock: row locks over the publish, or a fence on the claim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from timeoutmgr.contracts import Key, LockedTimeouts, Outcome, Timeout
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.message.instants import Micros

from .database import CLAIM_TIME
from .ledger import LockedChunk

if TYPE_CHECKING:
    from .store import SimStore


class LockedRows:
    """Timeouts that are locked until they are closed, under the claim *token*."""

    def __init__(
        self, store: SimStore, chunk: LockedChunk, token: str, passed_by: Sequence[Key]
    ) -> None:
        rows = store.database.rows
        self.timeouts: Sequence[Timeout] = [rows[key].timeout for key in chunk.keys]
        self.settled = False
        self._store = store
        self._chunk = chunk
        self._token = token
        self._passed_by = passed_by

    def now(self) -> Micros:
        """Return the database's time."""
        return self._store.world.timeline.now

    def close(self, outcomes: Sequence[Outcome]) -> None:
        """Record *outcomes* and commit."""
        store, chunk = self._store, self._chunk
        if chunk.cut_off:
            raise StorageUnavailable("the connection was lost")

        def work() -> None:
            store.database.record(outcomes)
            store.database.unlock(chunk)
            self.end_claim()
            store.calls.note("closes", *(one.key.id for one in outcomes))

        try:
            store.commit(work)
        except StorageUnavailable:
            chunk.interrupted = True
            raise
        self.settled = True

    def end_claim(self) -> None:
        """End the claim, unless another dispatcher has locked its other rows."""
        database = self._store.database
        if not any(key in database.rows for key in self._passed_by):
            database.claims.pop(self._token, None)

    def give_back(self) -> None:
        """End the claim of rows that were locked and not closed: they are maybe sent."""
        store, chunk = self._store, self._chunk

        def work() -> None:
            store.database.flag_maybe_sent(chunk.keys)
            self.end_claim()

        store.database.unlock(chunk)
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
    lock = _lock if store.database.row_locks else _lock_by_claim
    locked = lock(store, token, keys, ahead)
    chunk = calls.chunk
    assert chunk is not None, "a lock has its chunk"
    try:
        yield locked
    finally:
        # Nothing of this where the process was killed: it is not there to do it.
        if not calls.process.dead and not locked.settled:
            locked.give_back()
        store.world.ledger.ends(chunk, store.world.timeline.now)
        calls.chunk = None


def _locked_chunk(store: SimStore, keys: Sequence[Key], token: str) -> LockedChunk:
    ledger, calls, claim = store.world.ledger, store.calls, store.database.claims.get(token)
    fenced = claim is not None and not store.database.row_locks
    chunk = LockedChunk(calls.process, keys, 0, claim.until if claim and fenced else None)
    calls.note(f"takes {token}", *(key.id for key in keys))
    chunk.began = ledger.step
    ledger.takes(chunk)
    calls.chunk = chunk
    return chunk


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
    chunk = _locked_chunk(store, mine, token)
    for key in mine:
        database.rows[key].holder = chunk
    try:
        if mine and token not in database.claims:
            token, passed_by = store.commit(lambda: _claim_now(store, mine)), []
        calls.after()
    except BaseException:
        database.unlock(chunk)
        store.world.ledger.ends(chunk, store.world.timeline.now)
        calls.chunk = None
        raise
    return LockedRows(store, chunk, token, passed_by)


def _claim_now(store: SimStore, keys: Sequence[Key]) -> str:
    return store.database.claim(keys, store.calls.process, store.world.timeline.now, locked=False)


def _lock_by_claim(store: SimStore, token: str, keys: Sequence[Key], ahead: Micros) -> LockedRows:
    """Make the claim *token* ours for good, if it is nobody's yet."""
    database, calls = store.database, store.calls

    def work() -> tuple[str, list[Key], LockedChunk]:
        now = store.world.timeline.now
        fenced, mine = token, database.due(keys, now + ahead)
        if token:
            if not database.may_be_locked(token):
                fenced, mine = "", []
            else:
                claim = database.claims[token]
                claim.owner, claim.until, claim.locked = calls.process, now + CLAIM_TIME, True
        else:
            mine = [key for key in mine if not database.covering(key)][:1]
            fenced = database.claim(mine, calls.process, now, locked=True) if mine else ""
        return fenced, mine, _locked_chunk(store, mine, fenced)

    try:
        fenced, _, chunk = store.commit(work)
    except BaseException:
        # A fence that may have been raised protects nothing: nothing is sent behind it.
        if calls.chunk is not None:
            store.world.ledger.ends(calls.chunk, store.world.timeline.now)
            calls.chunk = None
        raise
    return LockedRows(store, chunk, fenced, [])
