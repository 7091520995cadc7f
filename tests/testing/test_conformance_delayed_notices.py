"""The suite of the delayed message stores notices what a store of one's own gets wrong."""

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
    "Early": "test_due_is_due_in_its_very_microsecond",
    "Unlocked": "test_what_is_fetched_is_nobody_elses_until_the_transaction_ends",
    "Kept": "test_a_removal_tells_whether_the_message_was_there",
    "Impatient": "test_a_message_that_is_put_off_holds_up_nobody",
    "Overwritten": "test_an_id_that_is_stored_is_left_as_it_is",
    "Asleep": "test_next_is_when_the_first_is_to_be_fetched",
    "Swallowed": "test_an_error_passes_and_gives_back_what_was_fetched",
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
