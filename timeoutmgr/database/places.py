"""Comparison of URLs: which database of which server a URL names, however it is written."""

import os
import pwd
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from sqlalchemy import Connection, Table, text
from sqlalchemy.engine import URL

from timeoutmgr.errors import CombinationRefused

Seen: TypeAlias = Callable[[], Sequence[object]]

# --- the place of an embedded database, and its file mode -------------------------------------

_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "glusterfs"}
)


def refuse_unsafe_file(path: Path) -> None:
    """Raise CombinationRefused if *path* is on a network file system, or has hard links.

    SQLite's locks and shared memory do not work there, so that two writers could meet. If the
    system does not show its mounts (no /proc), nothing is refused. SQLite names its log after the
    file: commits under one name of a file destroy commits under another.
    """
    folder = path.resolve().parent
    kind = _file_system(folder)
    if kind in _NETWORK:
        raise CombinationRefused(
            f"SQLite file {str(path)!r} on {kind}",
            "file locks do not hold on network file systems",
            "Put it on a local disk, or use PostgreSQL or MySQL.",
        )
    if path.is_file() and (names := path.stat().st_nlink) > 1:
        raise CombinationRefused(
            f"SQLite file {str(path)!r} with {names} names (hard links)",
            "each name has a write-ahead log of its own, and commits of other names are lost",
            "Remove the other names, or make them symbolic links.",
        )


def make_private(path: Path) -> None:
    """Create the database file *path*, readable only by its owner, if it does not exist.

    SQLite gives its WAL and shared memory the mode of the file. The file is created without being
    opened: closing it would release the locks of every other connection of this process.
    """
    if not path.exists():
        # If the file system cannot create a node, SQLite creates the file, or says why it cannot.
        with suppress(OSError):
            os.mknod(path, stat.S_IFREG | stat.S_IRUSR | stat.S_IWUSR)


def sync_path(path: Path) -> None:
    """Return when the file *path*, or the names in that folder, would outlast a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_system(folder: Path) -> str:
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = fields[1].replace("\\040", " ")
        inside = str(folder) == mount or f"{folder}/".startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind


_KINDS: Final = {"mariadb": "mysql"}
_PORTS: Final = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_THIS_MACHINE: Final = ("localhost", "::1")
# In PostgreSQL's options: -csearch_path=a,b or --search_path=a,b; the last counts.
_SEARCHED: Final = re.compile(r"(search_path|role)\s*=\s*((?:\\.|\S)*)")


def same_database(one: URL, other: URL) -> bool:
    """Return whether two URLs name the same database, even with different drivers and users."""
    return server_of(one) == server_of(other)


def one_connection_serves(one: URL, other: URL) -> bool:
    """Return whether connections by *one* and by *other* find the same tables.

    Except in MySQL, several schemas of a database may have tables of the same name. The server
    decides where a user's session searches (``ALTER ROLE … SET search_path``, the default schema of
    a user of SQL Server), and PostgreSQL's options may override this. A user may also lack access
    to the tables of another.
    """
    return same_database(one, other) and _searched(one) == _searched(other)


def _searched(url: URL) -> tuple[str, str, dict[str, str]]:
    """Return the user and options that select schemas in a session of *url*; none for MySQL."""
    if url.get_backend_name() not in {"postgresql", "mssql"}:
        return "", "", {}
    options = _asked(url, "options").replace("search-path", "search_path")
    return _user(url), _asked(url, "service"), dict(_SEARCHED.findall(options))


def _user(url: URL) -> str:
    """Return the user of *url*, as PostgreSQL's library determines it."""
    named = _asked(url, "user") or url.username or os.environ.get("PGUSER")
    with suppress(KeyError):  # the user of the process has no name
        return named or pwd.getpwuid(os.geteuid()).pw_name
    return ""


class OwnTable(Table):
    """A table of ours, which a ``schema_translate_map`` of a caller's connection does not move.

    In the schema of a program's tenant, a message would be in a table that nothing reads.
    """

    _use_schema_map = False


class UnqualifiedTables:
    """Tables without an explicit schema, which each session finds by its own state.

    The session of a program may search another schema of PostgreSQL, or use another database of
    MySQL: a message would be in a table of the same name there, which nothing reads.
    """

    def __init__(self) -> None:
        self._names: Final[dict[str, None]] = {}
        self._own: Sequence[object] = ()

    def add(self, table: Table) -> None:
        """Note *table* if it has no schema."""
        if table.schema is None:
            self._names[table.name] = None

    def require(self, what: str, theirs: Connection, ours: Seen, *, role: bool = False) -> None:
        """Raise CombinationRefused if *theirs* finds other tables than *ours*, or none of them.

        *what* is the connection's name in the error. With *role* another role is refused too.
        """
        if theirs.dialect.name not in ("postgresql", "mysql", "mariadb") or not self._names:
            return
        found, first = self.seen_by(theirs), 0 if role else 1
        if found[first:] == self._own[first:]:
            return
        self._own = ours()  # the first time, and after another install
        if role and found[0] != self._own[0]:
            raise CombinationRefused(
                f"{what} with another role",
                f"the message would be settled by {found[0]}, not by {self._own[0]}",
                "RESET ROLE before the handler returns.",
            )
        if found[1:] != self._own[1:]:
            raise CombinationRefused(
                f"{what} with another search_path, or in another database",
                f"it finds other tables than the endpoint's ({', '.join(self._names)}), or none",
                "Set search_path, role or database (USE) back, or give transport and persistence a "
                "schema.",
            )

    def seen_by(self, connection: Connection) -> Sequence[object]:
        """Return the role of *connection*, and the oid of each table that it finds.

        On MySQL, where no role finds others, no role and the database.
        """
        oids = [f"CAST(to_regclass('\"{name}\"') AS oid)" for name in tuple(self._names)]
        is_mysql = connection.dialect.name != "postgresql"
        seen = "'', DATABASE()" if is_mysql else f"current_user, {', '.join(oids)}"
        return tuple(connection.execute(text(f"SELECT {seen}")).one())


def server_of(
    url: URL, database: str | None = None, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the server and database that *url* names, or *database* on that server.

    PostgreSQL's and MySQL's drivers also read a host or a socket from the query; PostgreSQL's
    drivers read values that are missing in a URL from *environ*.
    """
    if url.get_backend_name() == "sqlite":
        return f"sqlite {Path(url.database or '').resolve()}"
    kind = _KINDS.get(url.get_backend_name(), url.get_backend_name())
    given = environ if kind == "postgresql" else {}
    host = _asked(url, "unix_socket") or _asked(url, "host") or url.host or given.get("PGHOST")
    host = host or "localhost"
    if not host.startswith("/"):  # the folder of a socket, or the socket
        host = "127.0.0.1" if host.lower() in _THIS_MACHINE else host.lower()
    port = _asked(url, "port") or url.port or given.get("PGPORT") or _PORTS.get(kind, 0)
    # PostgreSQL's own default for the database is the name of the user.
    name = database or url.database or given.get("PGDATABASE") or url.username or ""
    return f"{kind} {host}:{port}/{name}"


def _asked(url: URL, name: str) -> str:
    found = url.query.get(name, "")
    return found if isinstance(found, str) else ",".join(found)
