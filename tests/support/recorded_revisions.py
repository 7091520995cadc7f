"""An installation of tables out of a record, for tests whose subject is not the installation.

Alembic takes four fifths of the time of an installation, to make the same statements each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, event, inspect

_OTHERS: Final = ("SELECT", "PRAGMA", "SET", "SHOW", "DESCRIBE", "WITH", "BEGIN", "COMMIT")
_SHORTEST: Final = 8
"""Characters of a prefix that stand in no statement by chance."""

_upgrade: Final = command.upgrade
_recorded: Final[dict[tuple[str, str], list[tuple[str, Any]]]] = {}


@contextmanager
def recorded_revisions() -> Iterator[None]:
    """Install tables in an empty database as the first installation of its kind did it here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "upgrade", _repeat)
        yield


def _repeat(config: Config, revision: str, sql: bool = False) -> None:
    """Stand in for ``alembic.command.upgrade``, under the locks of an installation."""
    given = config.attributes
    prefix, place = given.get("prefix", ""), config.get_main_option("script_location")
    if sql or given["schema"] is not None or len(prefix) < _SHORTEST:
        _upgrade(config, revision, sql)
        return
    connection: Connection = given["connection"]
    key = (connection.dialect.name, str(place))
    is_installed = inspect(connection).has_table(given["version_table"])
    if connection.dialect.name == "postgresql":
        connection.commit()  # each revision begins a transaction of its own
    if is_installed:
        _upgrade(config, revision)
    elif key not in _recorded:
        with _recording(connection) as statements:
            _upgrade(config, revision)
        _recorded[key] = [(text.replace(prefix, "\0"), values) for text, values in statements]
    else:
        for text, values in _recorded[key]:
            connection.exec_driver_sql(text.replace("\0", prefix), values or None)


@contextmanager
def _recording(connection: Connection) -> Iterator[list[tuple[str, Any]]]:
    """Collect the changing statements of *connection*, as its driver gets them."""
    found: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, text: str, values: Any, *_others: Any) -> None:
        if not text.lstrip().upper().startswith(_OTHERS):
            found.append((text, values))

    event.listen(connection, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(connection, "before_cursor_execute", note)
