"""The backend: a task is a row and a message, both in one transaction."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from django.db import transaction
from django.utils import timezone

from timeoutmgr.contrib.django import endpoint
from timeoutmgr.contrib.django.configuration import alias
from timeoutmgr.contrib.django_tasks.framework import (
    BaseTaskBackend,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from timeoutmgr.message.instants import to_micros
from timeoutmgr.message.validation import check_due

if TYPE_CHECKING:
    from timeoutmgr.contrib.django_tasks.models import TaskRecord

MESSAGE: Final = "timeoutmgr.DjangoTask"
"""The type of a task's message; its id is the id of the task."""


class TasksBackend(BaseTaskBackend):  # type: ignore[misc]  # Django ships no types
    """Enqueues tasks as messages of the endpoint in ``TIMEOUTMGR``.

    In ``transaction.atomic`` the task exists if and only if that transaction commits. With
    ``run_after`` the message is a timeout.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue *task*; return its result, which is ready for execution.

        Raises InvalidMessage for a ``run_after`` outside the years 1 to 9999 in UTC.
        """
        from timeoutmgr.contrib.django_tasks.models import result_of  # models load behind tasks

        self.validate_task(task)
        run_after = _aware(task.run_after)
        if run_after is not None:
            check_due(to_micros(run_after))  # the driver of Django's database has another error
        with transaction.atomic(using=alias()):
            record = self._recorded(task, args, kwargs)
            # A broker joins no transaction; a timeout in Django's database does, due at once.
            delay = 0 if run_after is None and endpoint.has_broker else None
            endpoint.send_local(
                MESSAGE, {}, delay=delay, deliver_at=run_after, message_id=record.id
            )
        result = result_of(record)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result *result_id*. Raises TaskResultDoesNotExist."""
        from timeoutmgr.contrib.django_tasks.models import records, result_of

        record = records().filter(pk=result_id).first()
        if record is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(record)

    def _recorded(self, task: Any, args: Any, kwargs: Any) -> TaskRecord:
        from timeoutmgr.contrib.django_tasks.models import records

        task_id = uuid4().hex
        record: TaskRecord = records().create(
            id=task_id,
            permit=task_id,
            task=task.module_path,
            backend=self.alias,
            queue_name=task.queue_name,
            priority=task.priority,
            status=TaskResultStatus.READY,
            args=normalize_json(args),
            kwargs=normalize_json(kwargs),
            run_after=task.run_after,
            enqueued_at=timezone.now(),
        )
        return record


def _aware(instant: datetime | None) -> datetime | None:
    if instant is None or timezone.is_aware(instant):
        return instant
    # As the ORM reads the column with USE_TZ off, whatever zone is activated.
    aware: datetime = timezone.make_aware(instant, timezone.get_default_timezone())
    return aware
