"""The table of tasks, and its rows as results of Django Tasks."""

from typing import Any, ClassVar

from django.db import models
from django.utils.module_loading import import_string

from timeoutmgr.contrib.django.configuration import alias
from timeoutmgr.contrib.django_tasks.framework import TaskError, TaskResult, TaskResultStatus


class TaskRecord(models.Model):  # type: ignore[misc]  # Django ships no types
    """An enqueued task and its result.

    *permit* is the id of the message whose handler executes the task, initially its own message.
    """

    id = models.CharField(primary_key=True, max_length=64)
    task = models.CharField(max_length=500)
    backend = models.CharField(max_length=100)
    queue_name = models.CharField(max_length=100)
    priority = models.SmallIntegerField()
    status = models.CharField(max_length=10)
    permit = models.CharField(max_length=64, db_index=True)
    args = models.JSONField()
    kwargs = models.JSONField()
    run_after = models.DateTimeField(null=True)
    enqueued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    last_attempted_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True, db_index=True)
    errors = models.JSONField(default=list)
    worker_ids = models.JSONField(default=list)
    return_value = models.JSONField(null=True)

    class Meta:
        """The name of the table, and the order in which ready tasks are executed."""

        db_table = "timeoutmgr_django_tasks"
        indexes: ClassVar = [
            models.Index(
                fields=["status", "-priority", "enqueued_at"], name="timeoutmgr_task_order"
            )
        ]

    def __str__(self) -> str:
        """Return path, id and status."""
        return f"{self.task} {self.id} {self.status}"


def records() -> Any:
    """Return the query set of all records, in the database whose transactions sends join."""
    return TaskRecord.objects.using(alias())


def result_of(record: TaskRecord) -> Any:
    """Return *record* as a result. Raises ImportError if its task is not in this program."""
    task = import_string(record.task).using(
        priority=record.priority,
        queue_name=record.queue_name,
        run_after=record.run_after,
        backend=record.backend,
    )
    result = TaskResult(
        task=task,
        id=record.id,
        status=TaskResultStatus(record.status),
        enqueued_at=record.enqueued_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        last_attempted_at=record.last_attempted_at,
        args=record.args,
        kwargs=record.kwargs,
        backend=record.backend,
        errors=[TaskError(**error) for error in record.errors],
        worker_ids=list(record.worker_ids),
    )
    # The class is frozen for programs; its backends set the outcome.
    object.__setattr__(result, "_return_value", record.return_value)
    return result
