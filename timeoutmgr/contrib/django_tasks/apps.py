"""The Django app."""

from django.apps import AppConfig


class TasksApp(AppConfig):  # type: ignore[misc]  # Django ships no types
    """Has the table of tasks; ``timeoutmgr.contrib.django`` finds ``handlers``."""

    name = "timeoutmgr.contrib.django_tasks"
    label = "timeoutmgr_tasks"
    verbose_name = "Tasks"
