"""URLs of the databases that Django's settings describe."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy.engine import URL

from timeoutmgr.errors import ConfigurationError

_DJANGOS_OWN: Final = frozenset({"pool", "isolation_level", "assume_role", "server_side_binding"})
"""Options for Django; all others are parameters of libpq."""


def database_url(database: Mapping[str, Any]) -> str:
    """Return the URL of *database*, an entry of ``DATABASES``, as a transport or persistence.

    Raises ConfigurationError for an engine other than SQLite, PostgreSQL and MySQL.
    """
    engine = str(database.get("ENGINE", ""))
    make = _MAKERS.get(engine.rpartition(".")[2])
    if make is None:
        known = ", ".join(sorted(_MAKERS))
        raise ConfigurationError(
            f"the engine of Django's database is {engine!r}, expected a backend called {known}; "
            "name a transport and a persistence in TIMEOUTMGR"
        )
    return make(database).render_as_string(hide_password=False)


def _sqlite(database: Mapping[str, Any]) -> URL:
    name = str(database.get("NAME") or "")
    in_memory = ":memory:" in name or "mode=memory" in name
    return URL.create("sqlite", database=name if in_memory else str(Path(name).absolute()))


def _postgresql(database: Mapping[str, Any]) -> URL:
    options = {
        name: str(value)
        for name, value in (database.get("OPTIONS") or {}).items()
        if name not in _DJANGOS_OWN and isinstance(value, str | int)
    }
    return _server("postgresql+psycopg", database, "host", options)


def _mysql(database: Mapping[str, Any]) -> URL:
    given = database.get("OPTIONS") or {}
    options = {"charset": str(given.get("charset", "utf8mb4"))}
    if "unix_socket" in given:
        options["unix_socket"] = str(given["unix_socket"])
    return _server("mysql+pymysql", database, "unix_socket", options)


def _server(
    scheme: str, database: Mapping[str, Any], socket: str, options: Mapping[str, str]
) -> URL:
    """Return the URL of a server; *socket* is the option for a host that is a path."""
    host = str(database.get("HOST") or "")
    is_path = host.startswith("/")
    return URL.create(
        scheme,
        username=database.get("USER") or None,
        password=database.get("PASSWORD") or None,
        host=None if is_path else host or None,
        port=int(database["PORT"]) if database.get("PORT") else None,
        database=str(database["NAME"]) if database.get("NAME") else None,
        query={**options, **({socket: host} if is_path else {})},
    )


_MAKERS: Final[Mapping[str, Callable[[Mapping[str, Any]], URL]]] = MappingProxyType(
    {
        "sqlite3": _sqlite,
        "spatialite": _sqlite,
        "postgresql": _postgresql,
        "postgis": _postgresql,
        "mysql": _mysql,
    }
)
"""By the last part of the engine's module."""
