"""An installation of tables out of a record, for tests whose subject is not the installation.

Alembic takes four fifths of the time of an installation, to make the same statements each time.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, event, inspect

_OTHERS: Final = ("SELECT", "PRAGMA", "SET", "SHOW", "DESCRIBE", "WITH", "BEGIN", "COMMIT")
_SHORTEST: Final = 8
"""Characters of a prefix that stand in no statement by chance."""

Statements: TypeAlias = list[tuple[str, Any]]

_upgrade: Final = command.upgrade


class Records:
    """The statements of each installation, in files of *folder*, which all workers share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, Statements] = {}

    def file(self, dialect: str, place: str) -> Path:
        """Return the file for the migrations at *place* in a database of a *dialect*."""
        return self._folder / f"revisions-{dialect}-{sha256(place.encode()).hexdigest()[:12]}"

    def read(self, file: Path) -> Statements | None:
        """Return the statements in *file*; None if no worker has recorded them yet."""
        if file not in self._known:
            with suppress(FileNotFoundError):
                self._known[file] = pickle.loads(file.read_bytes())
        return self._known.get(file)

    def write(self, file: Path, statements: Statements) -> None:
        """Keep *statements* in *file*; a worker that reads meanwhile finds all of them or none."""
        written = file.with_name(f"{file.name}.{os.getpid()}")
        written.write_bytes(pickle.dumps(statements))
        written.replace(file)


@contextmanager
def recorded_revisions(records: Records) -> Iterator[None]:
    """Install tables in an empty database as the first installation of its kind did it here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "upgrade", partial(_repeat, records))
        yield


def _repeat(records: Records, config: Config, revision: str, sql: bool = False) -> None:
    """Stand in for ``alembic.command.upgrade``, under the locks of an installation."""
    given = config.attributes
    prefix, place = given.get("prefix", ""), config.get_main_option("script_location")
    if sql or given["schema"] is not None or len(prefix) < _SHORTEST:
        _upgrade(config, revision, sql)
        return
    connection: Connection = given["connection"]
    file = records.file(connection.dialect.name, str(place))
    is_installed = inspect(connection).has_table(given["version_table"])
    if connection.dialect.name == "postgresql":
        connection.commit()  # each revision begins a transaction of its own
    recorded = records.read(file)
    if is_installed:
        _upgrade(config, revision)
    elif recorded is None:
        with _recording(connection) as statements:
            _upgrade(config, revision)
        records.write(file, [(text.replace(prefix, "\0"), values) for text, values in statements])
    else:
        for text, values in recorded:
            connection.exec_driver_sql(text.replace("\0", prefix), values or None)


@contextmanager
def _recording(connection: Connection) -> Iterator[Statements]:
    """Collect the changing statements of *connection*, as its driver gets them."""
    found: Statements = []

    def note(_connection: Any, _cursor: Any, text: str, values: Any, *_others: Any) -> None:
        if not text.lstrip().upper().startswith(_OTHERS):
            found.append((text, values))

    event.listen(connection, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(connection, "before_cursor_execute", note)
