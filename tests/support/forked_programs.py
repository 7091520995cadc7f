"""Entries of programs that a fork server starts, with the package imported already."""

from __future__ import annotations

import atexit
import io
import os
import re
import runpy
import shlex
import sys
import warnings
from types import ModuleType
from typing import Final

from timeoutmgr.cli.main import COMMANDS, main

COMMAND: Final = f"{__name__}:command"
COMMAND_IN_GROUP: Final = f"{__name__}:command_in_group"
MODULE: Final = f"{__name__}:module"
SCRIPT: Final = f"{__name__}:script"
TEXT: Final = f"{__name__}:text"
PROGRAM: Final = f"{__name__}:program"
MODULES: Final = (
    __name__,
    "tests.support.warmed",
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


def command() -> None:
    """Be the command ``timeoutmgr``."""
    _become_a_program()
    main()


def command_in_group() -> None:
    """Be the command ``timeoutmgr`` in the process group of the server, for a run to its end."""
    main()


def script() -> None:
    """Be the program of the file that the first argument names."""
    _become_a_program()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


def module() -> None:
    """Be the program of the module that the first argument names."""
    _become_a_program()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def text() -> None:
    """Be the program that is the argument's text; a coroutine that nobody awaits ends it."""
    _become_a_program()
    warnings.simplefilter("error", RuntimeWarning)
    program = sys.argv.pop()
    sys.modules["__main__"] = module = ModuleType("__main__")
    atexit.register(vars(module).clear)  # a coroutine in a variable, too
    exec(compile(program, "<page>", "exec"), vars(module))


def program() -> None:
    """Be the program that the last argument is, as ``python -c`` is."""
    _become_a_program()
    code = compile(sys.argv.pop(), "<program>", "exec")
    sys.argv[0] = "-c"
    sys.modules["__main__"] = module = ModuleType("__main__")
    exec(code, vars(module))


def _become_a_program() -> None:
    """Lead a group of processes, and write each line at once: the test reads along."""
    os.setsid()
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True)
