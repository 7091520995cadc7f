"""The fork server: a process that imports modules ahead, and forks a child for each start.

A new interpreter takes a second to import everything; with a kill each second, processes would die
before they begin. The server opens no connections and has one thread, so its fork is as good as a
new process. The chaos run, the crash tests and the tests of the command line use it, through
``chaos.forkserver_client``. An order is a line with a JSON list: number, order, argument. An answer
is a line with number and result.
"""

import atexit
import gc
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

PRELOADED: Final = (
    *("timeoutmgr.cli.main", "timeoutmgr.cli.run"),
    *("timeoutmgr.endpoint.endpoint", "timeoutmgr.settings.file", "timeoutmgr.features.feature"),
    *("timeoutmgr.satellites", "timeoutmgr.persistence", "timeoutmgr.persistence.sql"),
    *("timeoutmgr.transport.sql.transport", "timeoutmgr.transport.kombu_transport"),
    *("timeoutmgr.migration.places", "timeoutmgr.migration.run", "timeoutmgr.native"),
    *("timeoutmgr.persistence.sql.migration", "timeoutmgr.deadletter", "sqlalchemy.orm"),
    *("concurrent.futures.thread", "encodings.idna"),
)
"""Modules that each user of the server needs."""


def main() -> None:
    """Carry out orders until the input ends; then kill every child."""
    for line in sys.stdin:
        number, order, given = json.loads(line)
        answer: Any = None
        match order:
            case "import":
                _import(given)
            case "start":
                answer = os.fork()
                if answer == 0:
                    _become(**given)
            case "ended":
                answer = _exit_code(given)
        print(json.dumps([number, answer]), flush=True)
    # The client ended, or was killed. All children are in the group that this process leads.
    os.killpg(0, signal.SIGKILL)


def _import(more: Sequence[str]) -> None:
    for name in (*PRELOADED, *more):
        importlib.import_module(name)
    if threading.active_count() > 1:
        raise RuntimeError(f"a thread would not survive a fork: {threading.enumerate()}")
    gc.collect()
    gc.freeze()  # pages of imported objects stay shared


def _become(
    entry: str,
    arguments: Sequence[str],
    streams: Sequence[str],
    variables: Mapping[str, str],
    folder: str | None,
) -> NoReturn:
    """Become the program *entry*, like a new interpreter in *folder*; never return."""
    if folder is not None:
        os.chdir(folder)
        sys.path.insert(0, folder)
    _redirect(streams)
    os.environ.clear()
    os.environ |= variables
    sys.argv = [entry, *arguments]
    module, _, function = entry.partition(":")
    try:
        code = getattr(importlib.import_module(module), function)()
    except SystemExit as end:
        code = end.code
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    _end(code)


def _end(code: object) -> NoReturn:
    """End like an interpreter, but without the destruction of the program's objects.

    Join threads, call exit functions and flush streams. An interpreter would then destroy all
    modules, for which a fork copies all their pages: half a second of processor time.
    """
    if code is not None and not isinstance(code, int):
        sys.exit(str(code))  # the interpreter prints it
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing ends its children
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):
        sys.exit(code)  # the interpreter reports errors of the output
    os._exit((code or 0) & 0xFF)


def _redirect(paths: Sequence[str]) -> None:
    """Open the files at *paths* as input, output and errors."""
    for number, path in enumerate(paths):
        how = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        opened = os.open(path, how)
        os.dup2(opened, number)
        os.close(opened)


def _exit_code(pid: int) -> int | None:
    """Return the exit code, a signal's as a negative number; None while the process runs.

    A dead child stays a zombie until the client asks: no other process can have its number.
    """
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


if __name__ == "__main__":
    main()
