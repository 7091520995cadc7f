"""Django system checks: wrong settings, and a risk with SQLite."""

from pathlib import Path
from typing import Any

from django.core.checks import Error, Warning
from django.db import connections

from timeoutmgr.contrib.django.configuration import alias, configuration
from timeoutmgr.errors import ConfigurationError


def check_timeoutmgr(**_given: Any) -> list[Error]:
    """Return the error in the settings or a handler, if any."""
    try:
        configuration().settings()
    except ConfigurationError as error:
        return [Error(str(error), id="timeoutmgr.E001")]
    return []


def check_sqlite_transactions(**_given: Any) -> list[Warning]:
    """Return a warning if a transaction of Django's SQLite may read before it locks the file."""
    try:
        database = connections[alias()].settings_dict
        made = configuration().settings()
    except ConfigurationError:
        return []  # the other check reports it
    parts = [part for part in (made.transport, made.persistence) if part is not None]
    files = [part.database.path for part in parts if part.database is not None]
    own = Path(str(database["NAME"])).resolve()
    is_shared = own in [path.resolve() for path in files if path is not None]
    if not is_shared or "transaction_mode" in (database.get("OPTIONS") or {}):
        return []
    return [
        Warning(
            "a transaction that reads before endpoint.send fails with 'database is locked' if "
            "another process has written meanwhile",
            hint='Set OPTIONS = {"transaction_mode": "IMMEDIATE"} (Django 5.1) for this SQLite.',
            id="timeoutmgr.W001",
        )
    ]
