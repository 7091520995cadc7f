"""The drivers of databases, by the extras that install them."""

from __future__ import annotations

from typing import Final

from sqlalchemy.engine import URL

_EXTRAS: Final = {
    "postgresql": ("postgresql", "postgresql+psycopg"),
    "mysql": ("mysql", "mysql+pymysql"),
    "mariadb": ("mysql", "mariadb+pymysql"),
    "mssql": ("sqlserver", "mssql+pymssql"),
}
"""The extra with the driver of a database, and the beginning of its URL."""


def remedy_for_missing(url: URL) -> str:
    """Return what to do where the driver of *url* is not installed."""
    found = _EXTRAS.get(url.get_backend_name())
    if found is None:
        return "install the driver that it names"
    extra, begins = found
    return f"run pip install 'timeoutmgr[{extra}]', and begin the URL with {begins}://"
