"""Gives birth to the processes of a run: it has imported what they need, and forks for each life.

A new interpreter takes a second to import everything; with a kill each second processes would die
before they have begun. The nursery opens nothing and has one thread, so that a fork of it is as
good as a new process. One JSON list a line comes in, a number before the order, and goes out.
"""

import gc
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import make_url

from timeoutmgr.testing.chaos.scene import is_database

_EVERYBODY: Final = (
    *("timeoutmgr.cli.main", "timeoutmgr.cli.serving", "timeoutmgr.cli.health"),
    *("timeoutmgr.endpoint", "timeoutmgr.settings_file", "timeoutmgr.features"),
    *("timeoutmgr.satellites", "timeoutmgr.persistence", "timeoutmgr.persistence.sql"),
    *("timeoutmgr.transport.sql.transport", "timeoutmgr.transport.kombu_transport"),
    *("timeoutmgr.testing.chaos.worker", "timeoutmgr.testing.chaos.consumer"),
    *("timeoutmgr.cli.migrate", "timeoutmgr.migration.places", "timeoutmgr.migration.starting"),
    *("timeoutmgr.native", "timeoutmgr.persistence.migrating"),
    *("timeoutmgr.testing.chaos.producer", "concurrent.futures.thread", "encodings.idna"),
)


def main() -> None:
    """Carry out orders until the input ends; then nobody who was born here is left."""
    for line in sys.stdin:
        number, order, given = json.loads(line)
        answer: Any = None
        match order:
            case "import":
                _import(given)
            case "start":
                answer = os.fork()
                if answer == 0:
                    _live(**given)
            case "ended":
                answer = _how_it_ended(given)
        print(json.dumps([number, answer]), flush=True)
    # Whoever ordered is gone, perhaps killed. All are in the group that this process leads.
    os.killpg(0, signal.SIGKILL)


def _import(urls: Iterable[str]) -> None:
    for name in _EVERYBODY:
        importlib.import_module(name)
    for url in urls:
        if is_database(url):
            made = make_url(url)
            made.get_dialect().import_dbapi()
            importlib.import_module(f"sqlalchemy.dialects.{made.get_backend_name()}")
        else:
            importlib.import_module("kombu.transport.pyamqp")
    if threading.active_count() > 1:
        raise RuntimeError(f"a thread would not survive a fork: {threading.enumerate()}")
    gc.freeze()  # pages that hold only what was imported stay shared


def _live(entry: str, arguments: list[str], log: str, environment: dict[str, str]) -> None:
    """Be a process of its own from here on; ends with SystemExit, never with a return."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for target, source in ((0, nothing), (1, sink), (2, sink)):
        os.dup2(source, target)
    for source in (nothing, sink):
        os.close(source)
    os.environ.update(environment)
    sys.argv = [entry, *arguments]
    module, _, function = entry.partition(":")
    sys.exit(getattr(importlib.import_module(module), function)())


def _how_it_ended(pid: int) -> int | None:
    """Return the exit code, a signal's as a negative number; None while it lives.

    The dead are kept until they are asked for: until then nobody else can have their number.
    """
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


if __name__ == "__main__":
    main()
