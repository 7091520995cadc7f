"""Steps and stores with one wrong order or one wrong lock; each makes a mutant of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from timeoutmgr.contracts import (
    Answered,
    CancelResult,
    Chunk,
    Key,
    LockedTimeouts,
    Outcome,
    OutcomeKind,
    Repeat,
    SagaClear,
    Sending,
    SendResult,
    Timeout,
    Transaction,
)
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Outgoing
from timeoutmgr.satellites.delivery.dispatch import DispatchSteps
from timeoutmgr.satellites.delivery.forwarder import delivered
from timeoutmgr.satellites.timeout_manager.dispatcher import DispatchTimeouts
from timeoutmgr.transport.work import Work

from . import tables
from .fenced import FencedStore
from .rowlocks import RowLockStore
from .store import Rows, in_order
from .tables import ClaimedKeys
from .world import Row, World


class DeleteBeforePublish(DispatchTimeouts):
    def _send_and_close(self, locked: LockedTimeouts, work: Work) -> DispatchSteps:
        at = self.clock.now()
        ended = [Outcome(key=t.key, kind=OutcomeKind.DISPATCHED, at=at) for t in locked.timeouts]
        locked.close(ended)
        yield
        stamp = to_wire(at)
        work.send_isolated([Outgoing(t.destination, delivered(t, stamp)) for t in locked.timeouts])


class ConfirmNotAwaited(DispatchTimeouts):
    def _send_and_close(self, locked: LockedTimeouts, work: Work) -> DispatchSteps:
        yield from super()._send_and_close(locked, _Trusting(work))


class NewIdPerDispatch(DispatchTimeouts):
    def _send_and_close(self, locked: LockedTimeouts, work: Work) -> DispatchSteps:
        yield from super()._send_and_close(locked, _Renaming(work))


class ErrorQueueAfterRemoval(DispatchTimeouts):
    def _send_and_close(self, locked: LockedTimeouts, work: Work) -> DispatchSteps:
        late = _Late(work, self.error_queue)
        yield from super()._send_and_close(locked, late)
        work.send_isolated(late.kept)


class _Wrapped(Work):
    """A unit of work whose isolated sends are changed."""

    def __init__(self, work: Work) -> None:
        super().__init__(work._session, work._receiver, work._mode)
        self._inner = work

    def start_isolated(self, outgoing: Sequence[Outgoing]) -> Sending:
        return Answered(self.send_isolated(outgoing))


class _Trusting(_Wrapped):
    def send_isolated(self, outgoing: Sequence[Outgoing]) -> list[SendResult]:
        return [SendResult.CONFIRMED for _ in self._inner.send_isolated(outgoing)]


class _Renaming(_Wrapped):
    def send_isolated(self, outgoing: Sequence[Outgoing]) -> list[SendResult]:
        again = [
            replace(one, message=replace(one.message, id=f"new-{one.message.id}"))
            for one in outgoing
        ]
        return self._inner.send_isolated(again)


class _Late(_Wrapped):
    def __init__(self, work: Work, error_queue: str) -> None:
        super().__init__(work)
        self._error_queue = error_queue
        self.kept: list[Outgoing] = []

    def send_isolated(self, outgoing: Sequence[Outgoing]) -> list[SendResult]:
        if any(one.destination == self._error_queue for one in outgoing):
            self.kept += outgoing
            return [SendResult.CONFIRMED for _ in outgoing]
        return self._inner.send_isolated(outgoing)


class FlagBeforePublish(FencedStore):
    """Marks a row as sent when it is taken, and never takes it again."""

    def _lock_claim(self, world: World, found: tuple[str, Rows]) -> World:
        rows = world.rows
        for key, row in found[1]:
            rows = rows.having(key, row._replace(next_try=10**18))
        return super()._lock_claim(world._replace(rows=rows), found)


class HighWaterKey(FencedStore):
    """Claims only keys behind the last key of the claim before; keeps no claim."""

    def _claim_keys(self, world: World, now: Micros, limit: int) -> ClaimedKeys:
        keys = sorted(k for k in world.rows if k > world.high_water and k.due <= now)[:limit]
        return ClaimedKeys(keys=tuple(keys), token=f"mark-{world.serial}" if keys else "")

    def claim(
        self,
        now: Micros,
        limit: int,
        owner: str,
        *,
        chunks: int = 1,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> Chunk:
        def change(world: World, given: ClaimedKeys) -> World:
            if not given.keys:
                return world
            return tables.claimed_by(world, given, owner)._replace(high_water=given.keys[-1])

        given = self._run("claim", lambda world: self._claim_keys(world, now, limit), change)
        return Chunk(given.token, given.keys, None)


class LeaseWithoutRowLock(RowLockStore):
    """The claim alone says whose a row is; nothing is held over the publish."""

    def _lock_rows(
        self, see: Callable[[World], World], token: str, keys: Sequence[Key]
    ) -> Callable[[World], Any]:
        lock = super()._lock_rows(see, token, keys)

        def read(world: World) -> Any:
            return world, lock(world)[1]

        return read


class UnfencedClaim(FencedStore):
    """Each dispatcher with the token may send."""

    def _fenced_rows(self, world: World, token: str, keys: Sequence[Key]) -> tuple[str, Rows]:
        return (token, self._rows(world, keys)) if token in world.claims else ("", ())


class TombstoneLookedAtUnlocked(RowLockStore):
    """Looks for a tombstone, then inserts: between the two all may have happened."""

    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> Sequence[Repeat]:
        batch = in_order(timeouts)

        def read(world: World) -> tuple[World, tuple[str, ...]]:
            return world, tuple(one.id for one in batch if one.id not in world.keys)

        def insert(world: World) -> tuple[World, None]:
            known = world.keys
            after = tables.inserted(world, [t for t in batch if t.key not in world.rows], unseen)
            return after._replace(keys=type(known)({**after.keys, **known})), None

        unseen = self._ask("look for tombstones", read)
        if unseen:
            self._commit("insert", insert)
        return ()


class NoTombstoneAfterDispatch(RowLockStore):
    """Forgets an id with its row."""

    def _commit(self, name: str, work: Callable[[World], tuple[World, Any] | None]) -> Any:
        def forgetting(world: World) -> tuple[World, Any] | None:
            done = work(world)
            if name != "remove the rows" or done is None:
                return done
            after = done[0]
            closed = {key.id for key in world.rows} - {key.id for key in after.rows}
            for one in closed:
                after = after._replace(keys=after.keys.without(one))
            return after, done[1]

        return super()._commit(name, forgetting)


class CancelWithoutRowLock(RowLockStore):
    def _lock_row(self, timeout_id: str) -> tuple[Key, bool] | None:
        def read(world: World) -> tuple[World, tuple[Key, bool]]:
            key = Key(world.keys[timeout_id].due, timeout_id)
            row = world.rows.get(key, Row(0))
            return world, (key, row.maybe_sent)

        held: tuple[Key, bool] = self._ask("look at the row", read)
        return held


class CancelLeavesNoTombstone(FencedStore):
    def cancel(self, timeout_id: str) -> CancelResult:
        known = self._read("is it there", lambda world: timeout_id in world.keys)
        return super().cancel(timeout_id) if known else CancelResult.WILL_BE_CANCELLED


class DueNotLookedAtAgain(RowLockStore):
    """Takes a row by its id, wherever it was moved to."""

    def _lock_rows(
        self, see: Callable[[World], World], token: str, keys: Sequence[Key]
    ) -> Callable[[World], Any]:
        ids = {key.id for key in keys}

        def lock(world: World) -> Any:
            there = sorted(key for key in see(world).rows if key.id in ids)
            free = [k for k in there if not world.held_by_other(("row", k), self._who)]
            rows = tuple((k, see(world).rows[k]) for k in free)
            return world.locking(self._who, *(("row", k) for k in free)), (rows, True, ())

        return lock


class EndedClaimLeavesNoFlag(RowLockStore):
    def _marked(self, world: World, keys: Sequence[Key]) -> World:
        return world


class UnknownLeavesNoFlag(DispatchTimeouts):
    """Retries unconfirmed timeouts, and does not flag them as maybe sent."""

    def _send_and_close(self, locked: LockedTimeouts, work: Work) -> DispatchSteps:
        yield from super()._send_and_close(_Forgetful(locked), work)


class _Forgetful:
    def __init__(self, locked: LockedTimeouts) -> None:
        self._locked = locked
        self.timeouts = locked.timeouts

    def close(self, outcomes: Sequence[Outcome]) -> None:
        self._locked.close([replace(one, maybe_sent=False) for one in outcomes])


class NoClaimBeforePublish(RowLockStore):
    """Publishes the id of a single-id order under a row lock alone, which leaves no trace."""

    def _claim_before_publish(self, rows: Rows) -> str:
        return ""


class EndsOthersClaim(RowLockStore):
    """A dispatcher that found the rows in other hands ends the claim on them."""

    def _end(self, world: World, token: str, others: Sequence[Key]) -> World:
        return tables.forgotten(world, token)


class ReleasesLockedClaim(FencedStore):
    """A poller that does not know whether its ids went out takes the claim back."""

    def release(self, token: str, *, maybe_sent: bool = False) -> None:
        self._run("release", lambda world: None, lambda world, _: tables.forgotten(world, token))


class ClearsByTimeOfSending(RowLockStore):
    """Clears what was sent before the order by the clocks of two hosts."""

    def clear_saga(
        self, order: SagaClear, *, transaction: Transaction | None = None
    ) -> Sequence[str]:
        by_clocks = replace(order, place=None, ahead=frozenset())
        return super().clear_saga(by_clocks, transaction=transaction)


class ForgetsClears(FencedStore):
    """Stores a message that a consumer had in hand when its saga was cleared."""

    def clear_saga(
        self, order: SagaClear, *, transaction: Transaction | None = None
    ) -> Sequence[str]:
        def change(world: World, _: object) -> World:
            after = tables.cleared(world, order)
            forgetful = {saga: replace(c, sent=0) for saga, c in after.cleared.items()}
            return after._replace(cleared=type(after.cleared)(forgetful))

        self._run("clear", lambda world: None, change, transaction)
        return ()


class ClearsBesideStores(RowLockStore):
    """Clears while another transaction stores a timeout of the saga."""

    def _lock_clears(self, world: World) -> tuple[World, None]:
        return world, None
