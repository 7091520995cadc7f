"""A process that archives, restores, erases or compacts, and is killed at one of its steps."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine, event

from tests.pipeline.lakes import S3
from timeoutmgr.clock import SystemClock
from timeoutmgr.pipeline.jobs.archive import archive
from timeoutmgr.pipeline.jobs.compact import compact
from timeoutmgr.pipeline.jobs.erase import erase
from timeoutmgr.pipeline.jobs.restore import restore
from timeoutmgr.pipeline.lake_options import CompactOptions, EraseOptions, RestoreOptions
from timeoutmgr.pipeline.options import ArchiveOptions

JOBS: Final[dict[str, tuple[Any, Any]]] = {
    "archive": (archive, ArchiveOptions),
    "erase": (erase, EraseOptions),
    "restore": (restore, RestoreOptions),
    "compact": (compact, CompactOptions),
}
ENTRY: Final = f"{__name__}:main"
MODULES: Final = (
    *(__name__, "tests.pipeline.rows", "timeoutmgr.settings.file", "timeoutmgr.persistence"),
    *("sqlite3", "adbc_driver_postgresql.dbapi", "psycopg", "sqlalchemy.dialects.postgresql"),
    *("timeoutmgr.pipeline.lake.delta", "timeoutmgr.pipeline.lake.iceberg"),
)
"""Modules that the fork server imports ahead."""
FILES: Final = {"os.link", "os.rename", "os.remove"}
"""What Python calls the changes of a folder, before each."""


def changes_files(name: str, details: tuple[Any, ...]) -> bool:
    """Return whether an audited event precedes a change of a file or folder."""
    return name in FILES or (name == "open" and str(details[1] or "r")[0] in "wxa")


def main() -> int:
    """Run the job that the argument describes; die at its step ``die_at``, if it has so many.

    With the URL ``s3`` the steps are the requests that change something there.
    """
    given = json.loads(sys.argv[1])
    steps = itertools.count(1)
    os.environ.update(given["environ"])
    if given["s3"] is not None:
        S3(given["s3"]).kill(os.getpid(), given["die_at"])
        given["die_at"] = 0

    def step() -> None:
        if next(steps) == given["die_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    # Before each commit of a change, and so after all that precedes it. Between two steps nothing
    # lasting happens: a process that is killed there leaves what it leaves at the second of them.
    changes: dict[Any, int] = {}

    def commit(connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        if driver.total_changes != changes.get(driver, 0):
            changes[driver] = driver.total_changes
            step()

    event.listen(Engine, "commit", commit)
    sys.addaudithook(lambda name, details: step() if changes_files(name, details) else None)
    options = {name: _value(name, value) for name, value in given["options"].items()}
    job, made = JOBS[given["job"]]
    job(made(**options), clock=SystemClock())
    return 0


def _value(name: str, value: Any) -> Any:
    """Return the value of an option as JSON has it, as the option has it."""
    if name == "older_than":
        return timedelta(days=value)
    return tuple(value) if isinstance(value, list) else value
