"""Servers that answer as PostgreSQL or MySQL do and are neither: refused by their own names.

A version number proves nothing: TiDB reports MySQL 8.0.11, CockroachDB a recent PostgreSQL. A
server's own name stands in its greeting, so that to read it takes no round trip.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Engine, event

from timeoutmgr.errors import CombinationRefused


@dataclass(frozen=True, slots=True)
class Lookalike:
    """A kind of server, the sign by which its greeting tells, and why it cannot be relied on."""

    name: str
    sign: re.Pattern[str]
    reason: str


LOOKALIKES: Final = (
    Lookalike(
        "CockroachDB",
        re.compile("CockroachDB"),
        "its SKIP LOCKED also passes by rows that are free, and it has no LISTEN",
    ),
    Lookalike(
        "YugabyteDB",
        re.compile("-YB-"),
        "its pg_locks has not been proved here to show the session locks of living owners",
    ),
    Lookalike(
        "TiDB",
        re.compile("TiDB"),
        "its SKIP LOCKED can let go of the very lock that it takes, so that messages go twice",
    ),
    Lookalike(
        "Vitess",
        re.compile("Vitess|PlanetScale"),
        "its GET_LOCK and its SKIP LOCKED have not been proved here across shards",
    ),
)
_REMEDY: Final = "Use PostgreSQL, MySQL or MariaDB itself."
_POSTGRESQL_PARAMETERS: Final = ("crdb_version", "server_version")


def refuse_lookalikes(engine: Engine) -> None:
    """Have each new connection of *engine* raise CombinationRefused for such a server."""

    # Before SQLAlchemy's own look at the version, which fails where it cannot read the text.
    @event.listens_for(engine, "connect", insert=True)
    def detect(driver: Any, _record: Any) -> None:
        found = lookalike(greeting_of(driver))
        if found is not None:
            driver.close()
            raise CombinationRefused(f"{found.name} as a database", found.reason, _REMEDY)


def lookalike(greeting: Mapping[str, str]) -> Lookalike | None:
    """Return the kind of server that *greeting*, by parameter, gives away, if not a known kind."""
    said = " ".join(greeting.values())
    return next((kind for kind in LOOKALIKES if kind.sign.search(said)), None)


def greeting_of(driver: Any) -> dict[str, str]:
    """Return the server's greeting, as far as the driver keeps it.

    Of PostgreSQL's drivers psycopg keeps the parameters; PyMySQL keeps the version.
    """
    if hasattr(driver, "get_server_info"):
        return {"version": str(driver.get_server_info())}
    if not hasattr(driver, "info"):
        return {}
    values = {name: driver.info.parameter_status(name) for name in _POSTGRESQL_PARAMETERS}
    return {name: value for name, value in values.items() if value}
