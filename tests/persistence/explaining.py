"""Plans of PostgreSQL, of statements as the product ran them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine

_FORM = "ANALYZE, COSTS OFF"


def explained(
    engine: Engine,
    sql: str,
    values: Mapping[str, Any],
    settings: Mapping[str, str],
    form: str = _FORM,
) -> list[str]:
    """Return the plan that ran, of a statement as psycopg prepares it.

    The transaction of the statement is rolled back.
    """
    order = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql)))
    for number, name in enumerate(order, 1):
        sql = sql.replace(f"%({name})s", f"${number}")
    given = ", ".join(_literal(values[name]) for name in order)
    execute = f"EXECUTE looked_at({given})" if order else "EXECUTE looked_at"
    with engine.connect() as connection, connection.begin() as transaction:
        for name, value in settings.items():
            connection.exec_driver_sql(f"SET LOCAL {name} = {value}")
        connection.exec_driver_sql(f"PREPARE looked_at AS {sql}")
        explain = f"EXPLAIN ({form}) {execute}"
        plan = list(connection.exec_driver_sql(explain.replace("%", "%%")).scalars())
        connection.exec_driver_sql("DEALLOCATE looked_at")
        transaction.rollback()
    return plan


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return f"ARRAY[{', '.join(_literal(one) for one in value)}]"
    return str(value) if isinstance(value, int) else f"'{value}'"
