"""An installation of tables out of a record: for tests of what is done with them afterwards.

Alembic takes four fifths of the time of an installation, to make the same statements each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import event

from timeoutmgr.database import Database, upgrade

_OTHERS: Final = ("SELECT", "PRAGMA", "SET", "SHOW", "DESCRIBE", "WITH", "BEGIN", "COMMIT")
_SHORTEST: Final = 8
"""Characters of a prefix that stand in no statement by chance."""

_run_revisions: Final = upgrade._run_revisions
_recorded: Final[dict[tuple[str, str], list[tuple[str, Any]]]] = {}


@contextmanager
def recorded_revisions() -> Iterator[None]:
    """Install tables in an empty database as the first installation of its kind did it here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upgrade, "_run_revisions", _repeat)
        yield


def _repeat(
    database: Database,
    script_location: str | Path,
    version_table: str,
    schema: str | None,
    attributes: Mapping[str, Any],
) -> None:
    given = (database, script_location, version_table, schema, attributes)
    prefix, key = attributes.get("prefix", ""), (database.dialect.name, str(script_location))
    is_new = upgrade.current(database, version_table, schema) is None
    if schema is not None or len(prefix) < _SHORTEST or not is_new:
        _run_revisions(*given)
    elif key not in _recorded:
        with _recording(database) as statements:
            _run_revisions(*given)
        _recorded[key] = [(text.replace(prefix, "\0"), values) for text, values in statements]
    else:
        with database.begin() as connection:
            for text, values in _recorded[key]:
                connection.exec_driver_sql(text.replace("\0", prefix), values or None)


@contextmanager
def _recording(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """Collect what changes *database*, as its driver gets it."""
    found: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, text: str, values: Any, *_others: Any) -> None:
        if not text.lstrip().upper().startswith(_OTHERS):
            found.append((text, values))

    engines = {id(one): one for one in (database.engine, database.apart)}.values()
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", note)
