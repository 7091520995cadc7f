"""A Django project in this process: its settings are made once, its database anew for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connections
from django.test import override_settings

TIMEOUTMGR: dict[str, Any] = {"endpoint": "shop", "features": ["timeout-manager"]}


def pytest_configure() -> None:
    """Set Django up; it cannot be set up twice in a process."""
    if not settings.configured:
        settings.configure(
            DATABASES={
                name: {"ENGINE": "django.db.backends.sqlite3", "NAME": "unused"}
                for name in ("default", "other")
            },
            INSTALLED_APPS=[
                "timeoutmgr.contrib.django",
                *(["django_tasks"] if django.VERSION < (6,) else []),
                "timeoutmgr.contrib.django_tasks",
            ],
            TIMEOUTMGR={},
            TASKS={"default": {"BACKEND": "timeoutmgr.contrib.django_tasks.backend.TasksBackend"}},
            USE_TZ=True,
        )
        django.setup()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Any]:
    """The default connection, to a SQLite file of the test's own, with a table ``orders``."""
    connections.close_all()
    for alias in ("default", "other"):
        connections[alias].settings_dict["NAME"] = str(tmp_path / f"{alias}.sqlite3")
        connections[alias].settings_dict["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
    with override_settings(TIMEOUTMGR=TIMEOUTMGR):
        with connections["default"].cursor() as cursor:
            cursor.execute("CREATE TABLE orders (number TEXT)")
        yield connections["default"]
    connections.close_all()
