"""Entries of programs that a fork server starts, with the package imported already."""

from __future__ import annotations

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
SCRIPT: Final = f"{__name__}:script"
TEXT: Final = f"{__name__}:text"
MODULES: Final = (
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
        case ["python", path, *arguments] if not path.startswith("-"):
            return SCRIPT, [path, *arguments]
    return None


def command() -> int | None:
    """Be the command ``timeoutmgr``."""
    _become_a_program()
    return main()


def script() -> None:
    """Be the program of the file that the first argument names."""
    _become_a_program()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


def text() -> None:
    """Be the program that is the argument's text; a coroutine that nobody awaits ends it."""
    _become_a_program()
    warnings.simplefilter("error", RuntimeWarning)
    program = sys.argv.pop()
    sys.modules["__main__"] = module = ModuleType("__main__")
    exec(compile(program, "<page>", "exec"), vars(module))


def _become_a_program() -> None:
    """Lead a group of processes, and write each line at once: the test reads along."""
    os.setsid()
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True)
