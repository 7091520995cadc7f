"""Array parameters for PostgreSQL, written as text: psycopg would adapt each element in Python.

A chunk's hundred ids go to the server several times, and adapting them cost more than sending.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, BigInteger, ColumnElement, Dialect, LargeBinary, Text, cast, select
from sqlalchemy.types import TypeDecorator, TypeEngine


class _Array(TypeDecorator[Any]):
    """Values of the type *element* as one parameter."""

    impl = Text
    element: type[TypeEngine[Any]]

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        """Let the server parse the text of the array."""
        array = ARRAY(self.element)
        # A bare cast would be evaluated again for each row that is compared with it.
        return cast(select(cast(bindvalue, array)).scalar_subquery(), array)


class TextArray(_Array):
    """Texts as one parameter of type ``text[]``."""

    cache_ok = True
    element = Text

    def process_bind_param(self, value: Sequence[str] | None, dialect: Dialect) -> str | None:
        """Return the array in PostgreSQL's syntax, with every element quoted."""
        if not value:
            return None if value is None else "{}"
        spelled = '","'.join(value)
        if "\\" in spelled or spelled.count('"') != 2 * (len(value) - 1):
            spelled = '","'.join(one.replace("\\", r"\\").replace('"', r"\"") for one in value)
        return '{"' + spelled + '"}'


class NumberArray(_Array):
    """Whole numbers as one parameter of type ``bigint[]``; None is NULL."""

    cache_ok = True
    element = BigInteger

    def process_bind_param(
        self, value: Sequence[int | None] | None, dialect: Dialect
    ) -> str | None:
        """Return the array in PostgreSQL's syntax."""
        if value is None:
            return None
        return "{" + ",".join(map(str, value)).replace("None", "NULL") + "}"


class BytesArray(_Array):
    """Bytes as one parameter of type ``bytea[]``."""

    cache_ok = True
    element = LargeBinary

    def process_bind_param(self, value: Sequence[bytes] | None, dialect: Dialect) -> str | None:
        """Return the array in PostgreSQL's syntax: hexadecimal, with doubled backslashes."""
        if value is None:
            return None
        return "{" + ",".join([rf'"\\x{one.hex()}"' for one in value]) + "}"
