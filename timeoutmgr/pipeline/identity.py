"""Which store it is, whoever asks and however its URL is spelt: by that an archive names stores."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import exc, text
from sqlalchemy.engine import make_url

from timeoutmgr.database.places import server_of
from timeoutmgr.pipeline.stores import Store

# The server knows which schema a table is found in, and which database a pooler's name stands for.
_INSIDE: Final = (
    "SELECT current_database(), (SELECT n.nspname FROM pg_class c JOIN pg_namespace n "
    "ON n.oid = c.relnamespace WHERE c.oid = to_regclass(:table))"
)
_SPELT: Final = re.compile(r"[a-z]+(\+\w+)?://")


def identity(store: Store) -> str:
    """Return the name of *store*: another user, driver or spelling of its URL gives the same.

    On PostgreSQL the server is asked. Raises StorageUnavailable.
    """
    return str(_place(store))


def those_of(store: Store, names: Iterable[str]) -> frozenset[str]:
    """Return which of *names* are *store*'s, also of those that were given before there were such.

    Until then a store was named by its URL, and one whose host or folder is not in it may be
    another's: it is *store*'s where *store* would have got that very name. Whoever relies on it
    compares rows as well, see ``archived.ROW``.
    """
    place = _place(store)
    own = {str(place), f"{store.database.describe()} {store.tables.history.fullname}"}
    return frozenset(name for name in names if name in own or place.is_spelt(name))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the history of a store is; the empty *schema* is any."""

    server: str
    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.server} {self.schema}{'.' if self.schema else ''}{self.table}"

    def is_spelt(self, name: str) -> bool:
        """Whether *name* is a URL and a table of before, and can only be this."""
        other = _spelt(name)
        return (
            other is not None
            and (other.server, other.table) == (self.server, self.table)
            and other.schema in ("", self.schema)
        )


def _place(store: Store) -> _Place:
    url, table = store.database.url, store.tables.history
    if not store.is_postgresql:
        return _Place(server_of(url, table.schema), "", table.name)
    asked = store.database.engine.dialect.identifier_preparer.format_table(table)
    with store.database.read() as connection:
        database, schema = connection.execute(text(_INSIDE), {"table": asked}).one()
    return _Place(server_of(url, database), schema or table.schema or "", table.name)


def _spelt(name: str) -> _Place | None:
    given, _, fullname = name.rpartition(" ")
    if not _SPELT.match(given):
        return None
    try:
        url = make_url(given)
    except exc.ArgumentError:
        return None
    schema, _, table = fullname.rpartition(".")
    is_file = url.get_backend_name() == "sqlite"
    # A host was left out where it stood in the query, and a path is of whoever was there.
    if not (Path(url.database or "").is_absolute() if is_file else url.host):
        return None
    if url.get_backend_name() == "postgresql":
        return _Place(server_of(url), schema, table)
    return _Place(server_of(url, schema or None), "", table)
