"""URLs of the databases that Django's settings describe."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import URL

from timeoutmgr.errors import ConfigurationError

_OF_PYTHON: Final = frozenset(
    {"pool", "isolation_level", "assume_role", "server_side_binding"}
    | {"autocommit", "prepare_threshold", "context", "cursor_factory", "row_factory"}
)
"""Options for Django and psycopg; all others are parameters of libpq."""
_OF_A_SESSION: Final = frozenset(
    {"isolation_level", "use_unicode", "autocommit", "conv", "cursorclass", "sql_mode", "compress"}
    | {"init_command", "read_timeout", "write_timeout"}
)
"""Options of MySQL that affect Django's own sessions, not where they connect."""
_CARRIED: Final = frozenset(
    {"charset", "unix_socket", "read_default_file", "read_default_group", "connect_timeout"}
)
"""Options of MySQL that PyMySQL also has."""
_TLS: Final = frozenset({"ca", "cert", "key", "capath", "cipher", "check_hostname"})
_HOSTNAME_CHECKED: Final[Mapping[str, bool | None]] = MappingProxyType(
    {
        "DISABLED": None,
        "PREFERRED": None,
        "REQUIRED": False,
        "VERIFY_CA": False,
        "VERIFY_IDENTITY": True,
    }
)
"""By ``ssl_mode``; None if the mode does not use TLS."""


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


def is_in_memory(database: Mapping[str, Any]) -> bool:
    """Return whether *database* is an in-memory SQLite database."""
    name = str(database.get("NAME") or "")
    return ":memory:" in name or "mode=memory" in name


def _sqlite(database: Mapping[str, Any]) -> URL:
    name = str(database.get("NAME") or "")
    if is_in_memory(database):
        return URL.create("sqlite", database=name)
    path = unquote(urlsplit(name).path) if name.startswith("file:") else name
    return URL.create("sqlite", database=str(Path(path).absolute()))


def _postgresql(database: Mapping[str, Any]) -> URL:
    options = {
        name: str(value)
        for name, value in _options(database).items()
        if name not in _OF_PYTHON and isinstance(value, str | int)
    }
    return _server("postgresql+psycopg", database, "host", options)


def _mysql(database: Mapping[str, Any]) -> URL:
    given = _options(database)
    options = {"charset": "utf8mb4"}
    options |= {name: str(given[name]) for name in _CARRIED & given.keys()}
    options |= _tls(given)
    rest = given.keys() - _CARRIED - _OF_A_SESSION - {"ssl", "ssl_mode"}
    if rest:
        raise ConfigurationError(
            f"OPTIONS of Django's database has {', '.join(sorted(rest))}, which PyMySQL may not "
            "take; name a transport and a persistence in TIMEOUTMGR"
        )
    return _server("mysql+pymysql", database, "unix_socket", options)


def _tls(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the TLS options for PyMySQL. Raises ConfigurationError for options it lacks."""
    ssl = given.get("ssl") or {}
    mode = str(given.get("ssl_mode", "REQUIRED" if ssl is True else "PREFERRED")).upper()
    of_files = {} if ssl is True else _files_of(ssl)
    if mode not in _HOSTNAME_CHECKED:
        raise ConfigurationError(
            f"ssl_mode in OPTIONS of Django's database is {mode!r}, expected "
            f"{', '.join(_HOSTNAME_CHECKED)}"
        )
    if mode.startswith("VERIFY_") and not of_files.keys() & {"ca", "capath"}:
        raise ConfigurationError(
            f"ssl_mode in OPTIONS of Django's database is {mode}, and PyMySQL verifies nothing "
            "without authorities; name them as ca or capath in ssl"
        )
    is_checked = _HOSTNAME_CHECKED[mode]
    if of_files and is_checked is None:  # without a mode, mysqlclient does not check the host name
        is_checked = False
    if is_checked is not None:
        of_files.setdefault("check_hostname", is_checked)
    if mode == "DISABLED":
        of_files = {}
    return {
        f"ssl_{name}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in of_files.items()
    }


def _files_of(ssl: object) -> dict[str, Any]:
    if not isinstance(ssl, Mapping):
        raise ConfigurationError(
            f"ssl in OPTIONS of Django's database is {ssl!r:.80}, expected a table or True"
        )
    if unknown := ssl.keys() - _TLS:
        raise ConfigurationError(
            f"ssl in OPTIONS of Django's database has {', '.join(sorted(unknown))}, expected "
            f"{', '.join(sorted(_TLS))}; name a transport and a persistence in TIMEOUTMGR"
        )
    return dict(ssl)


def _options(database: Mapping[str, Any]) -> Mapping[str, Any]:
    return database.get("OPTIONS") or {}


def _server(
    scheme: str, database: Mapping[str, Any], socket: str, options: Mapping[str, str]
) -> URL:
    """Return the URL of a server; *socket* is the option for a host that is a path."""
    host = str(database.get("HOST") or "")
    port = str(database.get("PORT") or "")
    is_path = host.startswith("/")
    has_many = "," in host or "," in port
    hosts = {socket: _hosts_with_ports(host, port)} if has_many else {}
    return URL.create(
        scheme,
        username=database.get("USER") or None,
        password=database.get("PASSWORD") or None,
        host=None if is_path or has_many else host or None,
        port=None if has_many or not port else _port(port),
        database=str(database["NAME"]) if database.get("NAME") else None,
        query={**options, **({socket: host} if is_path else {}), **hosts},
    )


def _hosts_with_ports(host: str, port: str) -> tuple[str, ...]:
    """Return each host with its port, paired as by libpq: a single port is for all hosts."""
    hosts, ports = host.split(","), port.split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts):
        raise ConfigurationError(
            f"Django's database has the hosts {host!r} and the ports {port!r}; give one port, or "
            "one for each host"
        )
    return tuple(
        f"{name}:{_port(number)}" if number else name
        for name, number in zip(hosts, ports, strict=True)
    )


def _port(given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise ConfigurationError(
            f"PORT of Django's database is {given!r}; give a whole number"
        ) from None


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
