"""The suite of the timeout stores notices the errors of a foreign store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.projects import failures, run

SUITE = """
from dataclasses import replace

import pytest
from timeoutmgr.contracts import CancelResult, ChangeResult, TimeoutState
from timeoutmgr.persistence import MemoryPersistence
from timeoutmgr.persistence.memory_store import MemoryTimeoutStore as Store
from timeoutmgr.testing.conformance.stores import StoreConformance

class Early(Store):
    def claim(self, now, limit, owner, **options):
        return super().claim(now + 1, limit, owner, **options)

class Hasty(Store):
    def claim(self, now, limit, owner, *, ahead=0, **options):
        return super().claim(now, limit, owner, ahead=1_000 * ahead, **options)

class Certain(Store):
    def reschedule(self, timeout_id, due):
        answer = super().reschedule(timeout_id, due)
        if answer is ChangeResult.MAYBE_SENT:
            self._in.rows[self.key_of(timeout_id)].maybe_sent = False
        return answer

class Confident(Store):
    def record(self, token, mine, outcomes):
        super().record(token, mine, [replace(one, maybe_sent=False) for one in outcomes])

class Released(Store):
    def release(self, token, *, maybe_sent=False):
        super().release(token)

class Unlocked(Store):
    def release(self, token, *, maybe_sent=False):
        self._in.locked.clear()
        super().release(token, maybe_sent=maybe_sent)

class Thorough(Store):
    def cancel_saga(self, saga_id, *, sent_until=None, **options):
        return super().cancel_saga(saga_id, **options)

class Hidden(Store):
    def list(self, which, **options):
        return [one for one in super().list(which, **options) if one.key not in self._in.locked]

class Sluggish(Store):
    def reschedule(self, timeout_id, due):
        key = self.key_of(timeout_id)
        row = key and self._in.rows[key]
        is_waiting = row and row.timeout.attempts
        return ChangeResult.CHANGED if is_waiting else super().reschedule(timeout_id, due)

class Restless(Store):
    def next_due(self):
        return min((row.timeout.due for row in self._in.rows.values()), default=None)

class Purging(Store):
    def purge(self):
        before = self._clock.now() - self._retention
        for key, row in list(self._in.rows.items()):
            if row.timeout.created < before:
                del self._in.rows[key], self._in.known[key.id]
        return super().purge()

class Forgetful(Store):
    def purge(self):
        early = [one for one, known in self._in.known.items() if not known.content]
        for one in early:
            del self._in.known[one]
        return super().purge() + len(early)

class Suite(StoreConformance):
    durable, row_locks, transactions, limits_text = False, True, False, False
    kind = Store

    @pytest.fixture
    def make_persistence(self):
        made = MemoryPersistence(accept_loss=True)
        def timeouts(endpoint, clock, *, atomic_dispatch=False):
            store = MemoryPersistence.timeouts(made, endpoint, clock)
            return self.kind(endpoint, clock, store._in, made._claim_time, made._retention)
        made.timeouts = timeouts
        return lambda: made

"""
NOTICED = {
    "Early": "test_a_rescheduled_timeout_leaves_at_its_new_time_only",
    "Hasty": "test_a_claim_leaves_out_later_keys_and_returns_the_next_due_time",
    "Certain": "test_leaving_without_close_frees_timeouts_and_leaves_them_maybe_sent",
    "Confident": "test_outcomes_may_be_mixed",
    "Released": "test_a_timeout_of_an_order_that_perhaps_was_sent_is_maybe_sent",
    "Unlocked": "test_a_locked_timeout_is_left_out_of_other_claims_and_locks",
    "Hidden": "test_a_locked_timeout_is_left_out_of_other_claims_and_locks",
    "Thorough": "test_cancel_saga_spares_timeouts_that_were_sent_later",
    "Sluggish": "test_a_retry_waits_and_delays_no_other_timeout",
    "Restless": "test_a_retry_waits_and_delays_no_other_timeout",
    "Purging": "test_an_id_is_remembered_for_its_time_and_then_forgotten",
    "Forgetful": "test_an_id_is_remembered_for_its_time_and_then_forgotten",
}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return which cases failed, by the store that they were run on; one run for all."""
    folder: Path = tmp_path_factory.mktemp("theirs")
    names = ["Right", *NOTICED]
    classes = [f"class Test{name}(Suite):\n    kind = {name}\n" for name in names]
    text = SUITE + "class Right(Store):\n    pass\n\n" + "\n".join(classes)
    (folder / "test_theirs.py").write_text(text)
    chosen = " or ".join(dict.fromkeys(NOTICED.values()))

    _, counts, said = run(folder, "--tb=no", "-rf", "-k", chosen, "test_theirs.py")

    assert counts["passed"] >= len(names), said
    return failures(said)


@pytest.mark.parametrize(("store", "case"), NOTICED.items())
def test_a_store_that_breaks_a_promise_fails_its_case(
    failed: dict[str, set[str]], store: str, case: str
) -> None:
    assert case in failed[store]
    assert "Right" not in failed
