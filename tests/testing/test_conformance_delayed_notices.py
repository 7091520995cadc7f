"""The suite of the delayed message stores notices the errors of a foreign store."""

from __future__ import annotations

import re

import pytest

from tests.support.examples import EXAMPLES
from tests.testing.projects import run

SUITE = """
import sqlite3
import sys
sys.path.insert(0, {folder!r})

import pytest
from store import FileStore
from timeoutmgr.testing.conformance.delayed import DelayedStoreConformance

class Early(FileStore):
    def fetch_next_due_timeout(self, at, *, transaction):
        return super().fetch_next_due_timeout(at + 1, transaction=transaction)

class Unlocked(FileStore):
    def fetch_next_due_timeout(self, at, *, transaction):
        found = super().fetch_next_due_timeout(at, transaction=transaction)
        self._run("UPDATE delayed SET until = 0")
        return found

class Kept(FileStore):
    def remove(self, timeout, *, transaction=None):
        return super().remove(timeout, transaction=transaction) or True

class Impatient(FileStore):
    def increment_failure_count(self, timeout, not_before):
        return super().increment_failure_count(timeout, timeout.due)

class Overwritten(FileStore):
    def store(self, timeout, *, transaction=None):
        self._run("DELETE FROM delayed WHERE id = ?", timeout.id)
        super().store(timeout)

class Asleep(FileStore):
    def next(self):
        return next((found for (found,) in self._run("SELECT max(try_at) FROM delayed")), None)

class Swallowed(FileStore):
    def transaction(self):
        from contextlib import contextmanager
        @contextmanager
        def quiet():
            try:
                with FileStore.transaction(self) as mark:
                    yield mark
            except Exception:
                pass
        return quiet()

class Suite(DelayedStoreConformance):
    row_locks, transactions, settable_clock = False, False, True
    lapses, limits_text = True, False
    races = 20
    kind = FileStore

    @pytest.fixture
    def make_store(self, tmp_path):
        return lambda: self.kind(str(tmp_path / "delayed.db"))

"""
NOTICED = {
    "Early": "test_a_message_is_due_from_its_microsecond_on",
    "Unlocked": "test_a_fetched_message_is_locked_until_its_transaction_ends",
    "Kept": "test_a_removal_returns_whether_the_store_had_the_message",
    "Impatient": "test_a_postponed_message_delays_no_other",
    "Overwritten": "test_the_first_message_of_an_id_stays",
    "Asleep": "test_next_due_time_is_that_of_the_first_message",
    "Swallowed": "test_an_error_in_a_transaction_is_raised_and_frees_fetched_messages",
}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return which cases failed, by the store that they were run on; one run for all."""
    folder = tmp_path_factory.mktemp("theirs")
    classes = [f"class Test{name}(Suite):\n    kind = {name}\n" for name in NOTICED]
    text = SUITE.format(folder=str(EXAMPLES / "custom_store")) + "\n".join(classes)
    (folder / "test_theirs.py").write_text(text)
    chosen = " or ".join(NOTICED.values())

    _, _, said = run(folder, "--tb=no", "-rf", "-k", chosen, "test_theirs.py")

    found: dict[str, set[str]] = {}
    for name, case in re.findall(r"^FAILED \S+::Test(\w+)::(\w+)", said, re.MULTILINE):
        found.setdefault(name, set()).add(case)
    return found


@pytest.mark.parametrize(("store", "case"), NOTICED.items())
def test_a_store_that_breaks_a_promise_fails_its_case(
    failed: dict[str, set[str]], store: str, case: str
) -> None:
    assert case in failed[store]
