"""Text that is a key: compared by bytes, the same on every database."""

from re import compile
from typing import Any, Final

from sqlalchemy import VARBINARY as BYTES
from sqlalchemy import VARCHAR, Dialect, String, Text, UnicodeText
from sqlalchemy.dialects.mysql import VARBINARY
from sqlalchemy.types import TypeDecorator, TypeEngine

from timeoutmgr.errors import ConfigurationError

_BYTES_PER_CHARACTER: Final = 4
_KEEP_BYTES: Final = frozenset({"mysql", "mariadb", "mssql"})
LONG_TEXT: Final = Text().with_variant(UnicodeText(), "mssql")
"""A text that is no key. In a Text of SQL Server other letters than its code page's are lost."""


class KeyText(TypeDecorator[str]):
    """A key of at most *length* characters: case and trailing spaces count, order is by bytes.

    So ``.timeouts`` and ``.Timeouts`` are two queues everywhere. On MySQL and MariaDB it is
    VARBINARY: their collations without padding have different names, and both servers answer to
    one dialect. So it is on SQL Server, whose collations all pad with spaces. The length in
    characters is for the caller to check.
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
        if value is not None and dialect.name in _KEEP_BYTES:
            return value.encode()
        return value

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

    PostgreSQL takes no NUL; half a surrogate pair is no UTF-8.
    """
    is_utf8 = value.isascii() or value == value.encode("utf-8", "replace").decode()
    return is_utf8 and "\0" not in value


_IDENTIFIER: Final = compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")


def checked_identifier(what: str, name: str) -> str:
    """Return *name* if it is safe as a schema or table prefix; raise ConfigurationError if not.

    At most 41 characters, so that prefix and table name together fit PostgreSQL's 63.
    """
    if not _IDENTIFIER.fullmatch(name):
        raise ConfigurationError(
            f"{what} {name[:80]!r} is no plain identifier; expected a letter or underscore, then "
            "at most 40 letters, digits or underscores"
        )
    return name
