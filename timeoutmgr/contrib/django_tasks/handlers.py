"""The handler that executes tasks. ``timeoutmgr.contrib.django`` imports the module by its name."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from typing import Any, Final

from asgiref.sync import async_to_sync, iscoroutinefunction
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.models import Q
from django.utils import timezone

from timeoutmgr.contracts import TimeoutState
from timeoutmgr.contrib.django import endpoint, handler
from timeoutmgr.contrib.django.configuration import alias, ended_transactions
from timeoutmgr.contrib.django_tasks.backend import MESSAGE, TasksBackend
from timeoutmgr.contrib.django_tasks.framework import (
    TaskContext,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from timeoutmgr.contrib.django_tasks.models import TaskRecord, records, result_of
from timeoutmgr.endpoint.coroutines import in_one_process
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.routes import timeout_id
from timeoutmgr.resilience.after_fork import ChildEnds
from timeoutmgr.resilience.error_copy import traceback_of

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
_CANDIDATES: Final = 10
"""Maximum more urgent tasks to try: a cancelled task stays ready, and each costs a query."""
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


@handler(MESSAGE)
def execute(_message: Mapping[str, Any], context: HandlerContext) -> None:
    """Execute the task that the message permits, or a more urgent task in its place.

    A message that is redelivered after a crash executes the same task again, unless it is finished.
    """
    record = claimed(context.message_id)
    if record is not None:
        _run(record)


def claimed(permit: str) -> TaskRecord | None:
    """Return the task of *permit*, marked as running; None if it is finished or deleted."""
    while True:
        own: TaskRecord | None = records().filter(permit=permit).first()
        if own is None or own.finished_at is not None:
            return None
        if own.status == RUNNING or _claims(own, permit, _more_urgent(own)):
            return records().filter(permit=permit).get()  # type: ignore[no-any-return]  # Django has no types


def _more_urgent(own: TaskRecord) -> TaskRecord | None:
    # Not Now(): the database would compare the column with the local time of its session.
    is_due = Q(run_after=None) | Q(run_after__lte=timezone.now())
    ready = records().filter(is_due, status=READY, priority__gt=own.priority)
    found = ready.only("permit").order_by("-priority", "enqueued_at")[:_CANDIDATES]
    return next((each for each in found if _is_certain(each.permit)), None)


def _is_certain(permit: str) -> bool:
    """Return whether the message *permit* will certainly arrive: it is not in a store any more.

    After a swap, a task waits for the other message, but a stored message may be cancelled.
    """
    is_undelayed: bool = records().filter(pk=permit, run_after=None).exists()
    if is_undelayed and not endpoint.has_broker:
        return True
    try:
        found = endpoint.timeouts.show(timeout_id(endpoint.name, permit))
    except ConfigurationError:  # there is no store here
        return is_undelayed
    return found is not None and found[0] is TimeoutState.DISPATCHED


def _claims(own: TaskRecord, permit: str, urgent: TaskRecord | None) -> bool:
    """Claim *own* for its permit, or swap the permits of *own* and *urgent* and claim that.

    So each task keeps one message that is still to arrive. Return False if another process has
    changed either meanwhile. The more urgent row is locked first, so that there is no deadlock.
    """
    with transaction.atomic(using=alias()):
        first = own if urgent is None else urgent
        ready = records().filter(status=READY)
        is_done = ready.filter(pk=first.pk, permit=first.permit).update(
            status=RUNNING, permit=permit
        )
        if is_done and urgent is not None:
            is_done = ready.filter(pk=own.pk, permit=permit).update(permit=urgent.permit)
        if not is_done:
            transaction.set_rollback(True, using=alias())
        return bool(is_done)


def _run(record: TaskRecord) -> None:
    now = timezone.now()
    record.started_at = record.started_at or now
    record.last_attempted_at = now
    record.worker_ids = [*record.worker_ids, f"{socket.gethostname()}:{os.getpid()}"[-64:]]
    record.save()
    result = result_of(record)
    task_started.send(TasksBackend, task_result=result)
    try:
        record.return_value = _storable(_called(result))
        record.status = TaskResultStatus.SUCCESSFUL
    except BaseException as error:  # sys.exit is also a result of a task, which is not retried
        record.status = TaskResultStatus.FAILED
        record.errors = [*record.errors, _described(error)]
        _finish(record)  # while the error is handled: Django logs its traceback
    else:
        _finish(record)


def _finish(record: TaskRecord) -> None:
    record.finished_at = timezone.now()
    _save_finished(record)
    task_finished.send(TasksBackend, task_result=result_of(record))


def _save_finished(record: TaskRecord) -> None:
    """Save *record*; if the database refuses its value, save it as failed without the value.

    MariaDB ends the connection over a value that is too large, but a restart may end it too.
    """
    refusal = _refusal(record)
    if isinstance(refusal, OperationalError):
        refusal = _refusal(record)
    if refusal is not None:
        record.return_value = None
        record.status = TaskResultStatus.FAILED
        record.errors = [*record.errors, _described(refusal)]
        record.save()


def _refusal(record: TaskRecord) -> DatabaseError | None:
    """Save *record*; return the error of a database that refuses it.

    Raises OperationalError if the database is away, which is not a refusal.
    """
    try:
        with transaction.atomic(using=alias()):
            record.save()
    except DatabaseError as error:
        connection = connections[alias()]
        connection.close_if_unusable_or_obsolete()
        connection.ensure_connection()
        return error
    return None


def _storable(value: Any) -> Any:
    """Return *value* as JSON represents it. Raises ValueError if a database would refuse it."""
    normal = normalize_json(value)
    if _NUL.search(json.dumps(normal, allow_nan=False)):
        raise ValueError("the value of a task has a NUL character, which PostgreSQL cannot store")
    return normal


def _called(result: Any) -> Any:
    task = result.task
    context = [TaskContext(task_result=result)] if task.takes_context else []
    with ended_transactions(), ChildEnds():  # a child that the task forked has no result
        if iscoroutinefunction(task.func):
            coroutine = task.acall(*context, *result.args, **result.kwargs)
            return async_to_sync(in_one_process)(coroutine)
        return task.call(*context, *result.args, **result.kwargs)


def _described(error: BaseException) -> dict[str, str]:
    kind = type(error)
    # A database may refuse NUL and lone surrogates, which a message quotes.
    lines = traceback_of(error).encode(errors="backslashreplace").decode()
    return {
        "exception_class_path": f"{kind.__module__}.{kind.__qualname__}",
        "traceback": lines.replace("\0", "\\x00"),
    }
