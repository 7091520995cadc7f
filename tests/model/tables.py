"""Reads and changes of a store's statements: plain functions of a world.

Each pair is a read, whose result is hashable and complete, and the change that follows from it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from timeoutmgr.contracts import Key, Outcome, OutcomeKind, SagaClear, Timeout, TimeoutState
from timeoutmgr.contracts.sagas import remembered
from timeoutmgr.message.instants import Micros

from .letters import content, timeout
from .world import Claim, KeyRow, Map, Row, World

STATES = {
    OutcomeKind.DISPATCHED: TimeoutState.DISPATCHED,
    OutcomeKind.FAILED: TimeoutState.FAILED,
}


class ClaimedKeys(NamedTuple):
    """The effect of a claim: dropped claims, flagged rows, claimed keys."""

    dropped: tuple[str, ...] = ()
    marked: tuple[Key, ...] = ()
    keys: tuple[Key, ...] = ()
    token: str = ""


def inserted(
    world: World,
    timeouts: Sequence[Timeout],
    fresh: Sequence[str],
    reached: Collection[str] = (),
) -> World:
    """Store the *fresh* ids; ids that a clear *reached* are cancelled on arrival."""
    rows, keys = world.rows, world.keys
    for one in timeouts:
        if one.id in fresh and one.id in reached:
            keys = keys.having(one.id, KeyRow(TimeoutState.CANCELLED, one.due))
        elif one.id in fresh:
            keys = keys.having(one.id, KeyRow(TimeoutState.PENDING, one.due))
            rows = rows.having(one.key, Row(content(one), place=one.place))
    return world._replace(rows=rows, keys=keys)


def reached(world: World, timeouts: Sequence[Timeout]) -> frozenset[str]:
    """Return the ids of *timeouts*, which arrive now, that a remembered clear reaches."""
    known = world.cleared
    return frozenset(
        one.id
        for one in timeouts
        if (clear := known.get(one.saga_id or "")) is not None and clear.reaches(one)
    )


def cleared(world: World, order: SagaClear) -> World:
    """Carry out *order*, whose rows no dispatcher has locked."""
    before = world.cleared.get(order.saga_id)
    if before is not None and before.order_id == order.order_id:
        return world
    memory = remembered(before, order, world.now, is_complete=True)
    world = world._replace(cleared=world.cleared.having(order.saga_id, memory))
    for key, row in world.rows.items():
        one = timeout(row.timeout)
        if one.saga_id == order.saga_id and order.reaches(key.id, one.created, row.place):
            world = cancelled(world, key, row.maybe_sent)
    return world


def is_due(world: World, key: Key, now: Micros) -> bool:
    return key.due <= now and world.rows[key].next_try <= now


def free_keys(world: World, now: Micros, limit: int, dropped: Sequence[str]) -> tuple[Key, ...]:
    """Return the due keys outside all claims that stay, up to the first key of these claims."""
    active = [claim for token, claim in world.claims.items() if token not in dropped]
    free = sorted(
        key
        for key in world.rows
        if is_due(world, key, now) and not any(claim.covers(key) for claim in active)
    )[:limit]
    if not free:
        return ()
    starts = [claim.first for claim in active if claim.first > free[0]]
    return tuple(key for key in free if key < min(starts, default=Key(free[-1].due + 1, "")))


def claimed_by(world: World, given: ClaimedKeys, owner: str) -> World:
    world = marked(world, given.marked)
    claims = Map({token: c for token, c in world.claims.items() if token not in given.dropped})
    if given.keys:
        claims = claims.having(given.token, Claim(given.keys[0], given.keys[-1], owner))
        world = world._replace(serial=world.serial + 1, polls=world.polls + 1)
    return world._replace(claims=claims)


def marked(world: World, keys: Sequence[Key]) -> World:
    rows = world.rows
    for key in keys:
        if key in rows:
            rows = rows.having(key, rows[key]._replace(maybe_sent=True))
    return world._replace(rows=rows)


def forgotten(world: World, token: str) -> World:
    return world._replace(claims=world.claims.without(token))


def lapsed(world: World, token: str) -> World:
    if token not in world.claims:
        return world
    return world._replace(
        claims=world.claims.having(token, world.claims[token]._replace(over=True))
    )


def closed(world: World, outcomes: Sequence[Outcome]) -> World:
    """Record *outcomes* of rows that are where they were taken."""
    rows, keys = world.rows, world.keys
    for outcome in outcomes:
        row = rows.get(outcome.key)
        if row is None:
            continue
        if outcome.kind is OutcomeKind.RETRY:
            maybe = row.maybe_sent or outcome.maybe_sent
            again = row._replace(
                next_try=outcome.next_try, attempts=row.attempts + 1, maybe_sent=maybe
            )
            rows = rows.having(outcome.key, again)
        else:
            known = keys[outcome.key.id]
            keys = keys.having(outcome.key.id, known._replace(state=STATES[outcome.kind]))
            rows = rows.without(outcome.key)
    return world._replace(rows=rows, keys=keys)


def cancelled(world: World, key: Key, maybe_sent: bool) -> World:
    known = KeyRow(TimeoutState.CANCELLED, key.due, maybe_sent)
    return world._replace(rows=world.rows.without(key), keys=world.keys.having(key.id, known))


def barred(world: World, timeout_id: str) -> World:
    return world._replace(keys=world.keys.having(timeout_id, KeyRow(TimeoutState.CANCELLED, 0)))


def moved(world: World, key: Key, due: Micros, maybe_sent: bool) -> World:
    row = world.rows[key]._replace(next_try=0, maybe_sent=maybe_sent)
    known = KeyRow(TimeoutState.PENDING, due)
    rows = world.rows.without(key).having(Key(due, key.id), row)
    return world._replace(rows=rows, keys=world.keys.having(key.id, known))
