"""Django Tasks: a backend whose tasks are enqueued in the ORM's transaction, and may be delayed.

Add ``"timeoutmgr.contrib.django"`` and ``"timeoutmgr.contrib.django_tasks"`` to ``INSTALLED_APPS``,
and name ``"timeoutmgr.contrib.django_tasks.backend.TasksBackend"`` in ``TASKS``.
"""
