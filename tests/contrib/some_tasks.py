"""Tasks of Django Tasks for tests."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio import CancelledError
from typing import TYPE_CHECKING, Any

import django
from django.db import connection, transaction

if TYPE_CHECKING or django.VERSION < (6,):
    from django_tasks import TaskContext, default_task_backend, task
else:
    from django.tasks import TaskContext, default_task_backend, task

__all__ = ["default_task_backend"]

ran: list[Any] = []


@task
def note(what: str) -> str:
    """Note *what*, and return it."""
    ran.append(what)
    return what


@task
async def note_later(what: str) -> None:
    """Note *what* on an event loop."""
    ran.append(what)


@task(takes_context=True)
def attempts(context: TaskContext) -> int:
    """Return the number of the attempt."""
    return context.attempt


ERRORS = {one.__name__: one for one in (ValueError, SystemExit, KeyboardInterrupt, CancelledError)}


@task
async def fail(kind: str) -> None:
    """Fail, or end as a program does."""
    raise ERRORS[kind]("no")


@task
def fork() -> str:
    """Fork a child that exits; return what its parent sees."""
    if not (child := os.fork()):
        sys.exit(3)
    return f"parent of {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"


@task
async def fork_and_go_on(waits: bool) -> str:
    """Fork a child that goes on; return what its parent sees."""
    if not (child := os.fork()):
        signal.alarm(30)  # a child that does not end by itself fails the test
        if waits:
            await asyncio.sleep(0)
        return "child"
    return f"parent of {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"


@task
def leave_open(how: str, ends: str) -> str:
    """Begin a transaction in which *how* is noted; return, raise or commit, and leave it."""
    if how == "atomic":
        transaction.atomic().__enter__()
    else:
        transaction.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES ('left')")
    if ends == "raises":
        raise ValueError("no")
    if ends == "commits":
        transaction.commit()
    return how


@task
def give(what: str) -> Any:
    """Return a value that databases may refuse."""
    return {"nan": [float("nan")], "nul": {"a": "\\\0"}, "escape": "\\u0000"}[what]


@task
def fail_with(what: str) -> None:
    """Fail with *what* in the message."""
    raise ValueError(what)
