"""Entries of programs that a fork server starts, with the package imported already."""

from __future__ import annotations

import atexit
import io
import os
import re
import runpy
import shlex
import sys
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Final, NoReturn

from timeoutmgr.cli.main import COMMANDS, main

COMMAND: Final = f"{__name__}:command"
COMMAND_IN_GROUP: Final = f"{__name__}:command_in_group"
MODULE: Final = f"{__name__}:module"
SCRIPT: Final = f"{__name__}:script"
TEXT: Final = f"{__name__}:text"
PROGRAM: Final = f"{__name__}:program"
MODULES: Final = (
    __name__,
    "tests.acceptance.child",
    *(
        "tests.crash.worker",
        "tests.crash.mover",
        "tests.crash.scheduler",
        "tests.crash.bulk_worker",
    ),
    *sorted({f"timeoutmgr.cli.{place.partition(':')[0]}" for place in COMMANDS.values()}),
    "timeoutmgr.transport.sql.session",
    *("timeoutmgr.database.notifications", "timeoutmgr.transport.sql.leases"),
    *("sqlalchemy.orm", "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql", "psycopg"),
    *("sqlalchemy.dialects.mysql", "pymysql", "argparse", "sqlite3", "uuid", "json", "logging"),
    *("alembic.command", "alembic.runtime.environment", "alembic.ddl"),
    *("apscheduler.schedulers.background", "apscheduler.triggers.interval"),
    *("kombu", "kombu.transport.virtual", "kombu.transport.pyamqp", "amqp"),
    *("timeoutmgr.cli.doctor.checks", "timeoutmgr.cli.doctor.standbys", "alembic.config"),
    *("timeoutmgr.deadletter.node_status", "timeoutmgr.endpoint.recurrence", "click._textwrap"),
    *("celery.bin.celery", "celery.bin.worker", "celery.app.builtins", "celery.worker"),
    *("timeoutmgr.endpoint.audited_retries", "timeoutmgr.transport.error_queue_retry"),
)
"""Modules that the fork server of a test run imports ahead."""
_QUOTED: Final = re.compile(r"""'[^']*'|"[^"$`\\]*\"""")
_OF_A_SHELL: Final = re.compile(r"[|;&<>$`(){}*?~#\\!\n]")


def entry_of(command: str) -> tuple[str, list[str]] | None:
    """Return entry and arguments of a line that starts Python; None for what needs a shell."""
    if _OF_A_SHELL.search(_QUOTED.sub("", command)):
        return None
    match shlex.split(command):
        case ["timeoutmgr", *arguments]:
            return COMMAND, arguments
        case ["python", "-m", name, *arguments] | ["celery" as name, *arguments]:
            return MODULE, [name, *arguments]
        case ["python", path, *arguments] if not path.startswith("-"):
            return SCRIPT, [path, *arguments]
    return None


def command() -> NoReturn:
    """Be the command ``timeoutmgr``."""
    _become_a_program()
    _run(main)


def command_in_group() -> NoReturn:
    """Be the command ``timeoutmgr`` in the process group of the server, for a run to its end."""
    _run(main)


def script() -> NoReturn:
    """Be the program of the file that the first argument names."""
    _become_a_program()
    del sys.argv[0]
    _run(lambda: runpy.run_path(sys.argv[0], run_name="__main__"))


def module() -> NoReturn:
    """Be the program of the module that the first argument names."""
    _become_a_program()
    del sys.argv[0]
    _run(lambda: runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True))


def text() -> None:
    """Be the program that is the argument's text; a coroutine that nobody awaits ends it."""
    _become_a_program()
    warnings.simplefilter("error", RuntimeWarning)
    program = sys.argv.pop()
    sys.modules["__main__"] = module = ModuleType("__main__")
    exec(compile(program, "<page>", "exec"), vars(module))


def program() -> NoReturn:
    """Be the program that the last argument is, as ``python -c`` is."""
    _become_a_program()
    code = compile(sys.argv.pop(), "<program>", "exec")
    sys.argv[0] = "-c"
    sys.modules["__main__"] = module = ModuleType("__main__")
    _run(lambda: exec(code, vars(module)))


def _become_a_program() -> None:
    """Lead a group of processes, and write each line at once: the test reads along."""
    os.setsid()
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True)


def _run(run: Callable[[], object]) -> NoReturn:
    """Run a program, and end as an interpreter ends, but leave its objects as they are.

    Threads are joined, exit functions called and streams flushed. Then an interpreter takes all
    modules apart, and a fork copies each page of them for it: half the time of a short command.
    """
    code: object = None
    try:
        run()
    except SystemExit as end:
        code = end.code
    if code is not None and not isinstance(code, int):
        sys.exit(str(code))  # the interpreter prints it
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing ends its children
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):
        sys.exit(code)  # the interpreter says what became of the output
    os._exit((code or 0) & 0xFF)
