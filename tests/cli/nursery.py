"""Runs commands quickly: it has imported what they need, and forks for each of them.

A new interpreter takes longer to import everything than most commands take. This one opens nothing
and has one thread, so that a fork of it is as good. One JSON object a line comes in, the exit code
goes out once the command has ended.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import threading
from typing import Final

_NEEDED: Final = (
    *("timeoutmgr.cli.main", "timeoutmgr.cli.serving", "timeoutmgr.cli.health"),
    *("timeoutmgr.endpoint", "timeoutmgr.settings_file", "timeoutmgr.features"),
    *("timeoutmgr.satellites", "timeoutmgr.native", "timeoutmgr.deadletter"),
    *("timeoutmgr.persistence", "timeoutmgr.persistence.sql", "timeoutmgr.persistence.migrating"),
    *("timeoutmgr.transport.sql.transport", "timeoutmgr.transport.kombu_transport"),
    *("timeoutmgr.migration.places", "timeoutmgr.migration.starting"),
    *("sqlalchemy.orm", "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql", "psycopg"),
    *("alembic.command", "alembic.runtime.environment", "sqlite3", "kombu.transport.pyamqp"),
)


def main() -> None:
    """Run commands until the input ends."""
    for name in _NEEDED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a thread would not survive a fork"
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become_the_command(**json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become_the_command(
    arguments: list[str], folder: str, environment: dict[str, str], streams: list[str]
) -> None:
    """Be ``python -m timeoutmgr`` from here on; ends with SystemExit."""
    os.chdir(folder)
    os.environ.clear()
    os.environ |= environment
    for number, (name, how) in enumerate(zip(streams, (os.O_RDONLY, _OUT, _OUT), strict=True)):
        opened = os.open(name, how)
        os.dup2(opened, number)
        os.close(opened)
    sys.path.insert(0, folder)
    sys.argv = ["timeoutmgr", *arguments]
    importlib.import_module("timeoutmgr.cli.main").main()


_OUT: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC

if __name__ == "__main__":
    main()
