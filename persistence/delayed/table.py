"""The table of one endpoint's delayed messages as queries see it; the migration creates it.

``next_try`` is when a row may be fetched: its due time, moved on by each failed attempt. The key
begins with it, so that what is fetched next stands together, however much is behind it.
"""

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Table, Text

from timeoutmgr.database import checked_identifier
from timeoutmgr.database.texts import KeyText
from timeoutmgr.errors import ConfigurationError

SUFFIX: Final = ".delayed"
NAME_BYTES: Final = 55
"""The longest name of a table; with what is added for its version it fits PostgreSQL's 63."""


def table_name(endpoint: str, given: str | None) -> str:
    """Return the table's name: the one *given*, or that of *endpoint*.

    Any printable text will do, as it is quoted. Raises ConfigurationError for one that some
    database would cut off: two endpoints would share a table.
    """
    name = endpoint + SUFFIX if given is None else given
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 0 < size <= NAME_BYTES or not name.isprintable():
        raise ConfigurationError(
            f"a delayed message store's table is printable text of 1 to {NAME_BYTES} bytes, got "
            f"{name!r:.120}; name another one with table="
        )
    return name


def delayed_table(schema: str | None, name: str) -> Table:
    """Return the table *name* in *schema* (None: the connection's own)."""
    if schema is not None:
        checked_identifier("schema", schema)
    return Table(
        name,
        MetaData(schema=schema),
        _instant("next_try", key=True),
        _text("id", key=True),
        _instant("due"),
        _text("destination"),
        _text("saga_id"),
        _text("message_id"),
        Column("headers", Text),
        Column("body", LargeBinary),
        _text("content_type"),
        _text("content_encoding"),
        _instant("created"),
        Column("attempts", Integer),
        _text("claimed_by"),
        _instant("claimed_until"),
    )


def _text(name: str, *, key: bool = False) -> Column[Any]:
    return Column(name, KeyText(255), primary_key=key)


def _instant(name: str, *, key: bool = False) -> Column[Any]:
    return Column(name, BigInteger, primary_key=key, autoincrement=False)
