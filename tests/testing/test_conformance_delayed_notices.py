"""The suite of the delayed message stores notices the errors of a foreign store."""

from __future__ import annotations

import pytest

from tests.support.examples import EXAMPLES
from tests.testing.projects import failures, run

SUITE = """
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
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

class Lapsed(FileStore):
    def fetch_next_due_timeout(self, at, *, transaction):
        found = super().fetch_next_due_timeout(at, transaction=transaction)
        self._run("UPDATE delayed SET until = ? WHERE held = ?", at + 1, transaction)
        return found

class Lowered(FileStore):
    def store(self, timeout, *, transaction=None):
        headers = {{name.lower(): value for name, value in timeout.message.headers.items()}}
        message = replace(timeout.message, headers=headers)
        super().store(replace(timeout, message=message))

class Trimmed(FileStore):
    def store(self, timeout, *, transaction=None):
        super().store(replace(timeout, destination=timeout.destination.strip()))

class ById(FileStore):
    def _run(self, statement, *values):
        return super()._run(statement.replace("ORDER BY try_at", "ORDER BY id"), *values)

class Unforgetting(FileStore):
    def remove(self, timeout, *, transaction=None):
        self._run("CREATE TABLE IF NOT EXISTS removed (id)")
        self._run("INSERT INTO removed VALUES (?)", timeout.id)
        return super().remove(timeout, transaction=transaction)

    def store(self, timeout, *, transaction=None):
        self._run("CREATE TABLE IF NOT EXISTS removed (id)")
        if not self._run("SELECT 1 FROM removed WHERE id = ?", timeout.id):
            super().store(timeout)

class Mixed(FileStore):
    pass  # it takes no notice of the endpoint

class Raw(FileStore):
    def _run(self, statement, *values):
        with closing(sqlite3.connect(self._path, timeout=20)) as connection, connection:
            return connection.execute(statement, values).fetchall()

class Suite(DelayedStoreConformance):
    row_locks, transactions, settable_clock = False, False, True
    can_be_cut_off = True
    lapses, limits_text = True, False
    races = 20
    kind = FileStore

    @pytest.fixture
    def make_store(self, tmp_path):
        return lambda: self.kind(str(tmp_path / "delayed.db"))

    @pytest.fixture
    def cut_off(self, tmp_path):
        return (tmp_path / "delayed.db").unlink

"""
NOTICED = {
    "Early": "test_a_message_is_due_from_its_microsecond_on",
    "Unlocked": "test_a_fetched_message_is_locked_until_its_transaction_ends",
    "Kept": "test_a_removal_returns_whether_the_store_had_the_message",
    "Impatient": "test_a_postponed_message_delays_no_other",
    "Overwritten": "test_the_first_message_of_an_id_stays",
    "Asleep": "test_next_due_time_is_that_of_the_first_message",
    "Swallowed": "test_an_error_in_a_transaction_is_raised_and_frees_fetched_messages",
    "Lapsed": "test_an_expired_fetch_frees_the_message_and_refuses_its_late_removal",
    "Lowered": "test_a_stored_message_comes_back_unchanged",
    "Trimmed": "test_a_stored_message_comes_back_unchanged",
    "ById": "test_messages_leave_in_the_order_of_their_due_times",
    "Unforgetting": "test_a_message_can_be_removed_before_it_is_due",
    "Raw": "test_a_storage_out_of_reach_is_reported_as_an_outage",
    "Mixed": "test_endpoints_of_one_storage_do_not_see_each_other",
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

    return failures(said)


@pytest.mark.parametrize(("store", "case"), NOTICED.items())
def test_a_store_that_breaks_a_promise_fails_its_case(
    failed: dict[str, set[str]], store: str, case: str
) -> None:
    assert case in failed[store]
