"""Whether a database server keeps its commits through a crash and a power cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, text

from timeoutmgr.contracts import SharedDatabase
from timeoutmgr.database.engine import Database, as_database
from timeoutmgr.errors import CombinationRefused


@dataclass(frozen=True, slots=True)
class DurabilityDoubt:
    """A setting of the server by which it may lose commits."""

    setting: str
    value: str
    loss: str
    remedy: str


_POSTGRESQL: Final = {
    "fsync": "a power cut may lose, or tear, what was stored",
    "full_page_writes": "a power cut may tear what was stored",
    "synchronous_commit": "a crash of the server may lose the last timeouts that were accepted",
}
_FLUSH: Final = "innodb_flush_log_at_trx_commit"
_FLUSH_LOSSES: Final = {
    0: "a crash of the server may lose the last timeouts that were accepted",
    2: "a power cut may lose the last timeouts that were accepted",
}


def durability_doubts(database: Database) -> Sequence[DurabilityDoubt]:
    """Return the settings of the server by which it may lose something, as this user has them."""
    if database.is_sqlite:
        return ()
    with database.read() as connection:
        if database.dialect.name == "postgresql":
            return _doubts_of_postgresql(connection)
        return _doubts_of_mysql(connection)


def require_durable(shared: SharedDatabase | None, *, accept_loss: bool) -> None:
    """Raise CombinationRefused if the server may lose commits; it is asked once.

    Not with *accept_loss*, and not for None, which is no database.
    """
    if shared is None or accept_loss:
        return
    database = as_database(shared)
    if database.proved.durable:
        return
    for doubt in durability_doubts(database):
        raise CombinationRefused(
            f"{database.describe()} with {doubt.setting} = {doubt.value}",
            doubt.loss,
            f"{doubt.remedy}, or set accept_loss.",
        )
    database.proved.durable = True


def _doubts_of_postgresql(connection: Connection) -> list[DurabilityDoubt]:
    found = {name: connection.execute(text(f"SHOW {name}")).scalar_one() for name in _POSTGRESQL}
    return [
        DurabilityDoubt(
            setting=name,
            value="off",
            loss=loss,
            remedy=f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()",
        )
        for name, loss in _POSTGRESQL.items()
        if found[name] == "off"
    ]


def _doubts_of_mysql(connection: Connection) -> list[DurabilityDoubt]:
    value = int(connection.execute(text(f"SELECT @@{_FLUSH}")).scalar_one())
    if value not in _FLUSH_LOSSES:
        return []
    return [
        DurabilityDoubt(
            setting=_FLUSH,
            value=str(value),
            loss=_FLUSH_LOSSES[value],
            remedy=f"SET GLOBAL {_FLUSH} = 1 (and in the server's file)",
        )
    ]
