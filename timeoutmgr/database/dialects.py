"""Abilities of each supported database, in one table; other databases are refused."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from timeoutmgr.errors import CombinationRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Abilities of a database, and their SQL.

    *now* is an SQL expression for its clock in UTC microseconds at the moment it is evaluated
    (not at the start of the transaction), None where the host's clock is all there is.
    *skip_locked* is the suffix of a SELECT that locks rows and skips locked rows.
    """

    name: str
    row_locks: bool
    now: str | None
    skip_locked: str
    minimum: tuple[int, ...]


SQLITE: Final = Dialect(name="sqlite", row_locks=False, now=None, skip_locked="", minimum=(3, 35))
POSTGRESQL: Final = Dialect(
    name="postgresql",
    row_locks=True,
    now="CAST(floor(extract(epoch FROM clock_timestamp()) * 1000000) AS bigint)",
    skip_locked=" FOR UPDATE SKIP LOCKED",
    minimum=(13,),
)
# SYSDATE is the moment of evaluation, NOW the start of the statement. The session's time zone is
# set to UTC at connect, so that UNIX_TIMESTAMP has no daylight saving hour to guess about.
_MYSQL_NOW: Final = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"
MYSQL: Final = Dialect(
    name="mysql",
    row_locks=True,
    now=_MYSQL_NOW,
    skip_locked=" FOR UPDATE SKIP LOCKED",
    minimum=(8, 0, 1),
)
MARIADB: Final = Dialect(
    name="mariadb",
    row_locks=True,
    now=_MYSQL_NOW,
    skip_locked=" FOR UPDATE SKIP LOCKED",
    minimum=(10, 6),
)

DIALECTS: Final = MappingProxyType(
    {dialect.name: dialect for dialect in (SQLITE, POSTGRESQL, MYSQL, MARIADB)}
)


def dialect_of(name: str) -> Dialect:
    """Return the row for SQLAlchemy's dialect *name*; raise CombinationRefused for another name."""
    try:
        return DIALECTS[name]
    except KeyError:
        raise CombinationRefused(
            f"database {name!r}",
            "its locking and clock have not been proved here",
            "Use sqlite, postgresql+psycopg, mysql+pymysql or mariadb+pymysql.",
        ) from None
