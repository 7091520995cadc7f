"""Starts workers quickly: it has imported all that they need, and forks for each of them.

A worker arms the crash point that its environment names, after the fork.
One JSON object a line comes in, one line goes out for it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from typing import Any, Final

from timeoutmgr.testing.crashing import arm_from_environment

_NEEDED: Final = (
    *("tests.crash.worker", "tests.crash.mover", "timeoutmgr.transport.sql.session"),
    *("timeoutmgr.transport.sql.listener", "timeoutmgr.transport.sql.keeper", "argparse"),
    *("sqlalchemy.orm", "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql", "psycopg"),
    *("alembic.command", "alembic.runtime.environment", "sqlite3", "uuid", "json", "logging"),
    *("apscheduler.schedulers.background", "apscheduler.triggers.interval"),
    *("kombu", "kombu.transport.virtual", "kombu.transport.pyamqp", "amqp"),
)


def main() -> None:
    """Fork and tell of ends, until the input ends."""
    for name in _NEEDED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            pid = os.fork()
            if pid == 0:
                _become_a_worker(order["start"], order["output"], order["environment"])
            answer: int | None = pid
        else:
            answer = _how_it_ended(order["ended"])
        print(json.dumps(answer), flush=True)


def _become_a_worker(given: dict[str, Any], output: str, environment: dict[str, str]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for target, source in ((0, nothing), (1, sink), (2, sink)):
        os.dup2(source, target)
    os.environ |= environment
    arm_from_environment()
    sys.exit(importlib.import_module(given.get("worker", "tests.crash.worker")).main(given))


def _how_it_ended(pid: int) -> int | None:
    """Return the exit code of a worker, a signal's as a negative number; None while it lives."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


if __name__ == "__main__":
    main()
