"""Of two concurrent calls exactly one wins, both learn it; nothing is lost or sent twice."""

# ruff: noqa: D102 - the name of a case says what it checks

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Key,
    RepeatKind,
    ReroutesTimeouts,
    TimeoutState,
    TimeoutStore,
)
from timeoutmgr.message.instants import Micros
from timeoutmgr.testing.conformance.plugin import needs
from timeoutmgr.testing.conformance.samples import HOUR, Track, race, timeout
from timeoutmgr.testing.conformance.stores.repeats import replacement
from timeoutmgr.testing.conformance.stores.suite import (
    ALL,
    Stores,
    StoreSuite,
    dispatch,
    drain,
    ids,
    outcomes,
    pending,
)

_BATCH = 50


class TimeoutRaces(StoreSuite):
    """The races that the contract's docstrings describe."""

    def _claimed(self, store: TimeoutStore, due: Micros, rounds: int) -> Iterator[tuple[str, Key]]:
        """Yield a token and its one key, *rounds* times."""
        for at in range(rounds):
            if at % _BATCH == 0:
                batch = range(at, min(rounds, at + _BATCH))
                store.store_many([timeout(f"{n:06}", due + n) for n in batch])
            chunk = store.claim(store.now(), 1, "o")
            (key,) = chunk.keys
            yield chunk.token, key

    def test_exactly_one_of_cancel_and_dispatch_wins(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        answers = {True: 0, False: 0}
        for token, key in self._claimed(store, now - HOUR, rounds):
            answer, sent = track.race(
                partial(store.cancel, key.id), partial(dispatch, store, token, [key])
            )
            was_sent = sent == [key.id]
            found = store.find(key.id)
            assert (answer is CancelResult.TOO_LATE) is was_sent, (key, answer, sent)
            assert answer not in (CancelResult.WILL_BE_CANCELLED, CancelResult.UNKNOWN)
            state = TimeoutState.DISPATCHED if was_sent else TimeoutState.CANCELLED
            assert found == (state, None)
            answers[was_sent] += 1

        assert sum(answers.values()) == rounds
        assert store.count(ALL) == 0

    def test_exactly_one_of_reschedule_and_dispatch_wins(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        for token, key in self._claimed(store, now - HOUR, max(50, rounds // 10)):
            answer, sent = track.race(
                partial(store.reschedule, key.id, now + HOUR),
                partial(dispatch, store, token, [key]),
            )
            moved = answer in (ChangeResult.CHANGED, ChangeResult.MAYBE_SENT)
            assert moved is (sent == []), (key, answer, sent)
            left = store.key_of(key.id)
            assert left == (Key(now + HOUR, key.id) if moved else None)

    def test_one_of_two_dispatchers_with_one_control_message_dispatches(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        for token, key in self._claimed(store, now - HOUR, max(50, rounds // 10)):
            one, other = track.race(
                partial(dispatch, store, token, [key]), partial(dispatch, store, token, [key])
            )
            assert one + other == [key.id]
            assert store.find(key.id) == (TimeoutState.DISPATCHED, None)

    def test_exactly_one_of_control_message_and_bare_id_dispatches(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        for token, key in self._claimed(store, now - HOUR, max(50, rounds // 10)):
            one, other = track.race(
                partial(dispatch, store, token, [key]), partial(dispatch, store, "", [key])
            )
            assert len(one + other) <= 1
            found = store.find(key.id)
            assert found is not None
            assert (found[0] is TimeoutState.DISPATCHED) is bool(one + other)
            if not one + other:
                store.release(token)
                assert drain(store) == [key.id]

    def test_a_redelivery_during_a_dispatch_stores_nothing_again(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        for token, key in self._claimed(store, now - HOUR, max(50, rounds // 10)):
            again = [timeout(key.id, key.due), timeout(f"{key.id} beside", now + HOUR)]
            _, sent = track.race(
                partial(store.store_many, again), partial(dispatch, store, token, [key])
            )
            assert sent == [key.id]
            assert store.find(key.id) == (TimeoutState.DISPATCHED, None)
            assert store.key_of(f"{key.id} beside") is not None

    def test_a_cancel_beside_its_store_message_wins(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        for n in range(max(50, rounds // 10)):
            name = f"{n}"
            _, answer = track.race(
                partial(store.store_many, [timeout(name, now)]), partial(store.cancel, name)
            )
            assert answer in (CancelResult.CANCELLED, CancelResult.WILL_BE_CANCELLED)
            assert store.find(name) == (TimeoutState.CANCELLED, None)
            assert store.count(ALL) == 0

    def test_exactly_one_of_replacement_and_dispatch_wins(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        for token, key in self._claimed(store, now - HOUR, max(50, rounds // 10)):
            newer = replacement(key.id, now + HOUR, now, body=b"newer")
            [repeat], sent = track.race(
                partial(store.store_many, [newer]), partial(dispatch, store, token, [key])
            )
            replaced = repeat.kind is RepeatKind.REPLACED
            assert replaced is (sent == []), (key, repeat.kind, sent)
            assert replaced or repeat.kind is RepeatKind.CONFLICT
            state = TimeoutState.PENDING if replaced else TimeoutState.DISPATCHED
            assert store.find(key.id) == (state, newer if replaced else None)

    def test_the_newest_of_concurrent_replacements_wins(
        self, store: TimeoutStore, now: Micros, rounds: int
    ) -> None:
        with Track(3) as track:
            for n in range(max(20, rounds // 20)):
                store.store_many([timeout(f"{n}", now)])
                newer = [
                    replacement(f"{n}", now + HOUR + at, now + at, body=b"%d" % at)
                    for at in range(3)
                ]
                # Beside a new id, and beside a duplicate.
                found = track.race(
                    partial(store.store_many, [newer[0], timeout(f"{n} beside", now + 2 * HOUR)]),
                    partial(store.store_many, [timeout(f"{n} beside", now + 2 * HOUR), newer[1]]),
                    partial(store.store_many, [newer[2]]),
                )
                assert store.find(f"{n}") == (TimeoutState.PENDING, newer[2])
                answers = {one.kind for some in found for one in some}
                left = {RepeatKind.SUPERSEDED, RepeatKind.DUPLICATE, RepeatKind.REPLACED}
                assert answers <= left
                assert store.count(ALL) == 2 * (n + 1)

    def test_a_cancel_beside_a_replacement_cancels_either_message(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        for n in range(max(50, rounds // 10)):
            name = f"{n}"
            store.store_many([timeout(name, now)])
            newer = replacement(name, now + HOUR, now, body=b"newer")
            [repeat], answer = track.race(
                partial(store.store_many, [newer]), partial(store.cancel, name)
            )
            assert repeat.kind in (RepeatKind.REPLACED, RepeatKind.CONFLICT)
            assert answer is CancelResult.CANCELLED
            assert store.find(name) == (TimeoutState.CANCELLED, None)

    def test_exactly_one_of_two_concurrent_contents_conflicts(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        for n in range(max(20, rounds // 20)):
            one, other = timeout(f"{n}", now), timeout(f"{n}", now, body=b"other")
            found = track.race(partial(store.store_many, [one]), partial(store.store_many, [other]))
            kinds = [repeat.kind for some in found for repeat in some]
            assert kinds == [RepeatKind.CONFLICT]
            stored = store.find(f"{n}")
            assert stored == (TimeoutState.PENDING, other if found[0] else one)

    def test_a_cancelled_message_that_arrives_twice_at_once_is_reported_once(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        count = max(20, rounds // 20)
        for n in range(count):
            store.cancel(f"{n}")
            found = track.race(
                partial(store.store_many, [timeout(f"{n}", now)]),
                partial(store.store_many, [timeout(f"{n}", now)]),
            )
            kinds = {repeat.kind for some in found for repeat in some}
            assert kinds == {RepeatKind.CANCELLED, RepeatKind.DUPLICATE}
        assert store.statistics().outcomes.get("cancelled") == count

    def test_two_batches_store_a_shared_id_once(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        for n in range(max(20, rounds // 20)):
            track.race(
                partial(store.store_many, [timeout(f"{n}", now), timeout(f"{n} a", now)]),
                partial(store.store_many, [timeout(f"{n} b", now), timeout(f"{n}", now + 1)]),
            )
            key = store.key_of(f"{n}")
            assert key in (Key(now, f"{n}"), Key(now + 1, f"{n}"))
            assert store.count(ALL) == 3 * (n + 1)

    def test_two_concurrent_cancels_get_the_same_answer(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        for n in range(max(20, rounds // 20)):
            name = f"{n}"
            known = n % 2 == 0
            if known:
                store.store_many([timeout(name, now)])
            answers = track.race(partial(store.cancel, name), partial(store.cancel, name))
            first = CancelResult.CANCELLED if known else CancelResult.WILL_BE_CANCELLED
            assert answers == [first, first]

    def test_two_concurrent_reschedules_move_a_timeout_once_each(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        for n in range(max(20, rounds // 20)):
            name = f"{n}"
            store.store_many([timeout(name, now)])
            answers = track.race(
                partial(store.reschedule, name, now + 1), partial(store.reschedule, name, now + 2)
            )
            assert answers == [ChangeResult.CHANGED] * 2
            assert store.key_of(name) in (Key(now + 1, name), Key(now + 2, name))
            assert store.count(ALL) == n + 1

    def test_cancel_saga_counts_exactly_the_timeouts_it_kept_from_dispatch(
        self, stores: Stores, now: Micros
    ) -> None:
        for n in range(5):
            store = stores(f"{stores.endpoint}.{n}")
            store.store_many([timeout(f"{i:03}", now - 1, saga="s") for i in range(60)])

            cancelled, sent = race(partial(store.cancel_saga, "s"), partial(drain, store, limit=7))
            sent += drain(store)

            # A timeout that was locked when the saga was cancelled is sent, and not counted.
            states = [found[0] for i in range(60) if (found := store.find(f"{i:03}"))]
            assert states.count(TimeoutState.CANCELLED) == len(cancelled)
            assert states.count(TimeoutState.DISPATCHED) == len(set(sent)) == len(sent)
            assert len(cancelled) + len(sent) == 60

    @needs(reroutes=True)
    def test_a_reroute_names_exactly_the_timeouts_that_go_to_the_new_destination(
        self, stores: Stores, now: Micros
    ) -> None:
        for n in range(5):
            store = stores(f"{stores.endpoint}.{n}")
            assert isinstance(store, ReroutesTimeouts)
            keys = [Key(now - 1, f"{i:03}") for i in range(60)]
            store.store_many([timeout(key.id, key.due) for key in keys])

            done, went = race(
                partial(store.reroute, keys, "elsewhere"), partial(drain_to, store, limit=7)
            )
            went |= drain_to(store)

            assert len(went) == 60
            rerouted = {name for name, where in went.items() if where == "elsewhere"}
            assert rerouted == {key.id for key in done.keys}

    def test_four_claimers_of_one_instant_share_no_key(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        names = [f"{n:03}" for n in range(400)]
        store.store_many([timeout(name, now - 1) for name in names])

        def claim(owner: str) -> list[str]:
            found: list[str] = []
            while chunk := ids(store.claim(store.now(), 9, owner)):
                found += chunk
            return found

        shares = race(*[partial(claim, f"owner {n}") for n in range(4)])

        assert sorted(name for share in shares for name in share) == names

    def test_exactly_one_claim_follows_a_release(
        self, store: TimeoutStore, now: Micros, rounds: int, track: Track
    ) -> None:
        store.store_many([timeout("a", now - 1)])
        for _ in range(max(20, rounds // 20)):
            held = store.claim(store.now(), 1, "o")
            assert ids(held) == ["a"]
            _, other = track.race(
                partial(store.release, held.token), lambda: store.claim(store.now(), 1, "p")
            )
            if other.token:
                assert ids(store.claim(store.now(), 1, "q")) == []
                store.release(other.token)
        assert drain(store) == ["a"]

    def test_concurrent_batches_with_shared_ids_store_each_id_once(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        names = [f"{n:03}" for n in range(60)]
        orders = [names, names[::-1], names[30:] + names[:30], names[::2] + names[1::2]]

        def write(order: list[str]) -> None:
            for at in range(0, 60, 20):
                store.store_many([timeout(name, now) for name in order[at : at + 20]])

        race(*[partial(write, order) for order in orders])

        assert pending(store) == names

    def test_concurrent_operations_end_each_timeout_once(
        self, store: TimeoutStore, now: Micros
    ) -> None:
        names = [f"{n:03}" for n in range(200)]
        store.store_many([timeout(name, now - 1) for name in names])

        def cancel() -> list[str]:
            answers = {name: store.cancel(name) for name in reversed(names)}
            return [name for name, answer in answers.items() if answer != CancelResult.TOO_LATE]

        def move() -> None:
            for name in names[::5]:
                store.reschedule(name, now - 7)

        def write_again() -> None:
            for at in range(0, 200, 40):
                store.store_many([timeout(name, now - 1) for name in names[at : at + 40]])

        cancelled, sent, more, _, _ = race(
            cancel, lambda: drain(store, "o", 7), lambda: drain(store, "p", 11), move, write_again
        )
        rest = drain(store)

        assert sorted(cancelled + sent + more + rest) == names
        assert store.count(ALL) == 0


def drain_to(store: TimeoutStore, limit: int = 100) -> dict[str, str]:
    """Dispatch all due, unlocked timeouts; return the destination of each id."""
    went: dict[str, str] = {}
    while (chunk := store.claim(store.now(), limit, "o")).keys:
        with store.lock_for_dispatch(chunk.token, chunk.keys) as locked:
            went |= {one.id: one.destination for one in locked.timeouts}
            locked.close(outcomes([one.key for one in locked.timeouts], store.now()))
    return went
