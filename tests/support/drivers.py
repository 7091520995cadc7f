"""Connections of the database drivers themselves, as a program without SQLAlchemy opens them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import psycopg
import pymysql
import pytest
from psycopg.rows import dict_row
from sqlalchemy.engine import URL, make_url


def connect_psycopg(url: URL, **more: Any) -> Any:
    """Return a connection of psycopg, whose rows are dicts."""
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(address, row_factory=dict_row, **more)


def connect_pymysql(url: URL, **more: Any) -> Any:
    """Return a connection of PyMySQL, whose rows are dicts."""
    return pymysql.connect(cursorclass=pymysql.cursors.DictCursor, **_parts(url), **more)


def connect_mysqlclient(url: URL, **more: Any) -> Any:
    """Return a connection of mysqlclient; it has no wheels, so that not every machine has it."""
    module = pytest.importorskip("MySQLdb")
    return module.connect(**_parts(url), **more)


def connect_sqlite(url: URL, **more: Any) -> Any:
    """Return a connection of sqlite3, whose rows are dicts by a factory."""
    assert url.database is not None
    connection = sqlite3.connect(url.database, **more)
    connection.row_factory = lambda cursor, row: dict(
        zip([name for name, *_ in cursor.description], row, strict=True)
    )
    return connection


def _parts(url: URL) -> dict[str, Any]:
    found = {
        "host": url.host,
        "port": url.port or 3306,
        "user": url.username,
        "password": url.password,
        "database": url.database,
        "unix_socket": url.query.get("unix_socket"),
    }
    return {name: value for name, value in found.items() if value is not None}


CONNECT: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {"sqlite": connect_sqlite, "postgresql": connect_psycopg, "mysql": connect_pymysql}
)
"""By the database of a URL."""


def connect(url: str, **more: Any) -> Any:
    """Return a connection of the usual driver to the database of *url*."""
    parsed = make_url(url)
    backend = parsed.get_backend_name().replace("mariadb", "mysql")
    return CONNECT[backend](parsed, **more)
