"""Errors of a database that lacks a table or a column: mostly, nobody ran the installer there."""

from typing import Final

from sqlalchemy import exc

_POSTGRESQL: Final = frozenset({"42P01", "42703", "3F000"})
_MYSQL: Final = frozenset({1054, 1146})
_SQLITE: Final = ("no such table", "no such column")


def tells_of_absence(error: BaseException | None) -> bool:
    """Return whether *error*, or a cause of it, names a table, column or schema as missing."""
    while error is not None:
        if isinstance(error, exc.DBAPIError) and error.orig is not None:
            return _is_of_absence(error.orig)
        error = error.__cause__
    return False


def _is_of_absence(error: BaseException) -> bool:
    if getattr(error, "sqlstate", None) in _POSTGRESQL:
        return True
    if error.args and error.args[0] in _MYSQL:
        return True
    text = str(error)
    return text.startswith(_SQLITE) or "has no column named" in text
