"""The endpoints that share one set of tables."""

from sqlalchemy import Connection, func, select

from timeoutmgr.contracts import EndpointReport
from timeoutmgr.database import Database

from .tables import Tables


def with_pending(database: Database, tables: Tables) -> list[EndpointReport]:
    """Return the endpoints that have pending timeouts, by name.

    One probe of the primary key finds the next endpoint: a DISTINCT would read every row.
    """
    timeouts, processes = tables.timeouts, tables.processes
    found: list[EndpointReport] = []
    with database.read() as connection:
        name = _next(connection, tables, "")
        while name is not None:
            earliest = select(func.min(timeouts.c.due)).where(timeouts.c.endpoint == name)
            seen = select(func.max(processes.c.heartbeat)).where(processes.c.endpoint == name)
            due = connection.execute(earliest).scalar()
            if due is not None:  # the last of its timeouts may just have been sent
                last = connection.execute(seen).scalar() or 0
                found.append(EndpointReport(endpoint=name, earliest=due, last_heartbeat=last))
            name = _next(connection, tables, name)
    return found


def _next(connection: Connection, tables: Tables, behind: str) -> str | None:
    endpoint = tables.timeouts.c.endpoint
    statement = select(endpoint).where(endpoint > behind).order_by(endpoint).limit(1)
    name: str | None = connection.execute(statement).scalar()
    return name
