"""The Django app."""

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.backends.signals import connection_created
from django.test.signals import setting_changed

from timeoutmgr.contrib.django.configuration import SETTING
from timeoutmgr.contrib.django.endpoint import follow_connection, forget_endpoint
from timeoutmgr.contrib.django.system_checks import check_sqlite_transactions, check_timeoutmgr


class TimeoutManagerApp(AppConfig):  # type: ignore[misc]  # Django ships no types
    """Registers the system checks, and reacts to settings and databases that tests change."""

    name = "timeoutmgr.contrib.django"
    label = "timeoutmgr"
    verbose_name = "Timeout manager"

    def ready(self) -> None:
        """Register the app's checks and signal handlers."""
        checks.register(check_timeoutmgr)
        checks.register(check_sqlite_transactions)
        setting_changed.connect(_follow_settings)
        connection_created.connect(follow_connection)


def _follow_settings(*, setting: str, **_more: Any) -> None:
    if setting in (SETTING, "DATABASES"):
        forget_endpoint()
