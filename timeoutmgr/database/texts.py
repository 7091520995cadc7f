"""Types for texts that are keys: compared by bytes, in the same way on every database."""

from re import compile
from typing import Any, Final

from sqlalchemy import VARBINARY as BYTES
from sqlalchemy import VARCHAR, Dialect, MetaData, String, Text, UnicodeText
from sqlalchemy.dialects.mysql import VARBINARY
from sqlalchemy.types import TypeDecorator, TypeEngine

from timeoutmgr.errors import ConfigurationError

_BYTES_PER_CHARACTER: Final = 4
_KEEP_BYTES: Final = frozenset({"mysql", "mariadb", "mssql"})
LONG_TEXT: Final = Text().with_variant(UnicodeText(), "mssql")
"""A text that is not a key. SQL Server's Text would lose letters that its code page lacks."""


class KeyText(TypeDecorator[str]):
    """A key of at most *length* characters: case and trailing spaces count; the order is by bytes.

    So ``.timeouts`` and ``.Timeouts`` are two queues on every database. On MySQL and MariaDB the
    type is VARBINARY: their collations without padding have different names, but both servers use
    one dialect. It is VARBINARY on SQL Server too, whose collations all pad with spaces. The caller
    must check the length in characters.
    """

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of *dialect* that compares by bytes."""
        if dialect.name in {"mysql", "mariadb"}:
            return dialect.type_descriptor(VARBINARY(self.length * _BYTES_PER_CHARACTER))
        if dialect.name == "mssql":
            return dialect.type_descriptor(BYTES(self.length * _BYTES_PER_CHARACTER))
        if dialect.name == "postgresql":
            return dialect.type_descriptor(VARCHAR(self.length, collation="C"))
        return dialect.type_descriptor(VARCHAR(self.length))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """Encode for databases that keep bytes."""
        return value.encode() if value is not None and dialect.name in _KEEP_BYTES else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """Decode bytes of a database."""
        return value.decode() if isinstance(value, bytes | bytearray) else value

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return the encoder of bound values; None if the database keeps texts."""
        keeps_bytes = dialect.name in _KEEP_BYTES
        return super().bind_processor(dialect) if keeps_bytes else None

    def result_processor(self, dialect: Dialect, coltype: Any) -> Any:
        """Return the decoder of results; None if the database keeps texts."""
        keeps_bytes = dialect.name in _KEEP_BYTES
        return super().result_processor(dialect, coltype) if keeps_bytes else None


def is_storable(value: str) -> bool:
    """Return whether every database keeps *value*.

    PostgreSQL refuses NUL, and UTF-8 cannot encode a lone surrogate.
    """
    is_utf8 = value.isascii() or value == value.encode("utf-8", "replace").decode()
    return is_utf8 and "\0" not in value


_IDENTIFIER: Final = compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")


def checked_identifier(what: str, name: str) -> str:
    """Return *name* if it is safe as a schema or table prefix; raise ConfigurationError if not.

    At most 41 characters, so that prefix and table name together fit PostgreSQL's 63.
    """
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise ConfigurationError(
            f"{what} {name!r:.80} is no plain identifier; expected a letter or underscore, then "
            "at most 40 letters, digits or underscores"
        )
    return name


def checked_metadata(schema: str | None, prefix: str = "_") -> MetaData:
    """Return the metadata of tables in *schema* (None: the connection's own), after a check."""
    checked_identifier("prefix", prefix)
    return MetaData(schema=None if schema is None else checked_identifier("schema", schema))
