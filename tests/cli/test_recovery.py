"""A PostgreSQL that is recovered to a point in time, and ``timeoutmgr restored`` behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.programs import Folder, Program
from tests.persistence.making import SECOND, timeout
from tests.services.postgres import PrivatePostgres, PrivateRecovery
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import TimeoutFilter
from timeoutmgr.message.headers import ENCLOSED_MESSAGE_TYPES
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.persistence.sql.store import SqlTimeoutStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
WHY = ("--reason", "disk of db-1 lost")
SENT = ["a", "b", "c"]


class Site:
    """A folder whose program works on a database that is lost, and then on what was recovered."""

    def __init__(self, folder: Folder, recovery: PrivateRecovery) -> None:
        self.folder = folder
        self._recovery = recovery
        self._app = (folder.path / "app.py").read_text()
        self._work_on(recovery.primary)
        assert folder.run("install").returncode == 0

    def _work_on(self, server: PrivatePostgres) -> None:
        self.url = server.url
        uses = [f"config.use_{part}({server.url!r})" for part in ("transport", "persistence")]
        self.folder.write("app.py", "\n".join([self._app, *uses]))
        for name in ("TIMEOUTMGR_PERSISTENCE", "TIMEOUTMGR_TRANSPORT"):
            self.folder.variables[name] = server.url

    @contextmanager
    def store(self) -> Iterator[SqlTimeoutStore]:
        persistence = SqlPersistence(self.url)
        yield persistence.timeouts(self.folder.endpoint, SystemClock())
        persistence.close()

    def put(self, store: SqlTimeoutStore, name: str, due: int) -> None:
        """Store a timeout for the handler of the program."""
        made = timeout(name, due, destination=self.folder.endpoint)
        headers = {ENCLOSED_MESSAGE_TYPES: "Hello"}
        message = replace(made.message, headers=headers, body=f'"{name}"'.encode())
        store.store_many([replace(made, message=message)])

    @contextmanager
    def running(self) -> Iterator[Program]:
        program = self.folder.start("run", "--app", "app:config")
        yield program
        assert program.stop() == 0

    def pending(self) -> set[str]:
        with self.store() as store:
            return {each.id for each in store.list(TimeoutFilter(), limit=10)}

    def recover(self, at: datetime) -> None:
        self._recovery.recover(at)
        self._work_on(self._recovery)


def test_what_was_sent_after_the_recovered_instant_is_held_and_sent_again_only_on_demand(
    folder: Folder, recovery: PrivateRecovery
) -> None:
    site = Site(folder, recovery)
    with site.store() as store:
        now = store.now()
        for name in SENT:
            site.put(store, name, now - SECOND)
        site.put(store, "to come", now + 3_600 * SECOND)
        claim = store.claim(now, 10, "a process that works on after the instant")
        at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=store.now())
        site.put(store, "lost", now + 3_600 * SECOND)
        store.release(claim.token)
    with site.running() as program:
        program.wait_for("handled ", times=3)

    site.recover(at)
    assert site.pending() == {*SENT, "to come"}
    held = folder.run(
        *("--json", "restored", "--at", at.isoformat(), *WHY, "--window", "hold", "--expect", "3")
    )
    assert held.returncode == 0, held.stdout + held.stderr
    assert held.json()["released_claims"] == 1
    with site.store() as store:
        site.put(store, "new", store.now())
    with site.running() as program:
        program.wait_for("handled new")
        assert program.out == ["handled new"]
        folder.run("runs", "undo", held.json()["run"]["id"], *WHY)
        program.wait_for("handled ", times=4)

    assert sorted(program.out[1:]) == [f"handled {name}" for name in SENT]
    assert site.pending() == {"to come"}
