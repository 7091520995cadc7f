"""The Django app."""

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.test.signals import setting_changed

from timeoutmgr.contrib.django.configuration import SETTING
from timeoutmgr.contrib.django.endpoint import forget_endpoint
from timeoutmgr.contrib.django.system_checks import check_sqlite_transactions, check_timeoutmgr


class TimeoutManagerApp(AppConfig):  # type: ignore[misc]  # Django ships no types
    """Registers the system checks, and follows changes of settings in tests."""

    name = "timeoutmgr.contrib.django"
    label = "timeoutmgr"
    verbose_name = "Timeout manager"

    def ready(self) -> None:
        """Register what the app adds to Django."""
        checks.register(check_timeoutmgr)
        checks.register(check_sqlite_transactions)
        setting_changed.connect(_follow_settings)


def _follow_settings(*, setting: str, **_more: Any) -> None:
    if setting in (SETTING, "DATABASES"):
        forget_endpoint()
