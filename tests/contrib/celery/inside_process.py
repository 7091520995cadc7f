"""A process that sends tasks in a transaction, and dies where it is told to."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from celery import Celery
from sqlalchemy import Connection, create_engine, text

from chaos.crash_command import arm_from_environment
from tests.contrib.celery.conftest import add
from timeoutmgr.contrib.celery import DurableDelays
from timeoutmgr.transport.sql import register

ENDS = ("before the commit", "after the commit")


def send(delays: DurableDelays, task: Any, connection: Connection, table: str) -> None:
    """Insert a row and send two tasks, in the transaction of *connection*."""
    with delays.inside(connection):
        task.apply_async((1, 2), task_id="delayed", countdown=3_600)
        connection.execute(text(f"INSERT INTO {table} VALUES (1)"))
        task.apply_async((1, 2), task_id="at once")


def main() -> int:
    """Send; die at the crash point of the environment, or at the end that an argument names."""
    name, broker, store, end = sys.argv[1:]
    register()
    app: Any = Celery(name, broker=broker, set_as_current=False)
    delays = DurableDelays(app, store=store, name=name, in_worker=False)
    task = app.task(add, name="add")
    assert delays.endpoint is not None  # installed before the transaction
    arm_from_environment()
    with create_engine(store).connect() as connection, connection.begin() as transaction:
        send(delays, task, connection, f"{name}_orders")
        for place in ENDS:
            if place == end:
                os.kill(os.getpid(), signal.SIGKILL)
            if transaction.is_active:
                transaction.commit()
    return 0
