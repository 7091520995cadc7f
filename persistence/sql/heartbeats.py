"""Heartbeats: what each process says of itself, at most about once a minute."""

import json
import os
from collections.abc import Mapping

from sqlalchemy import Connection, delete, select, update

from timeoutmgr.contracts import ProcessRecord
from timeoutmgr.crashpoints import reach
from timeoutmgr.instants import Micros

from .context import StoreContext
from .inserting import insert_missing
from .rows import to_json


def heartbeat(context: StoreContext, owner: str, state: Mapping[str, str]) -> Micros | None:
    """Write the heartbeat of *owner*, and see that its life is still held.

    Others think it gone once the server closed the connection that held it. Return by how much
    the database's clock is ahead where the statement can tell, the commit's time left out.
    """
    context.lives.renew(owner)
    processes = context.tables.processes

    def work(connection: Connection) -> Micros | None:
        said = to_json(state)
        mine = update(processes).where(processes.c.owner == owner)
        mine = mine.values(heartbeat=context.now_value, state=said)
        # One statement but for the first: an idle process is to leave the database alone.
        if context.has_database_clock and connection.dialect.update_returning:
            before = context.clock.now()
            theirs = connection.execute(mine.returning(processes.c.heartbeat)).scalar()
            if theirs is not None:
                return int(theirs) - (before + context.clock.now()) // 2
        elif connection.execute(mine).rowcount:
            return None
        now = context.now(connection)
        fixed = {
            "owner": owner,
            "endpoint": context.endpoint,
            "host": context.node,
            "pid": os.getpid(),
        }
        first = fixed | {"started": now, "heartbeat": now, "state": said}
        insert_missing(connection, processes, [first])
        return None

    ahead = context.database.run(work)
    reach("heartbeats.written")
    return ahead


def farewell(context: StoreContext, owner: str) -> None:
    """Remove the heartbeat of *owner*."""
    table = context.tables.processes
    context.database.run(
        lambda connection: connection.execute(delete(table).where(table.c.owner == owner))
    )


def processes(context: StoreContext) -> list[ProcessRecord]:
    """Return the endpoint's processes that wrote a heartbeat, the latest first."""
    table = context.tables.processes
    with context.database.read() as connection:
        rows = connection.execute(
            select(table)
            .where(table.c.endpoint == context.endpoint)
            .order_by(table.c.heartbeat.desc())
        ).all()
    return [ProcessRecord(**{**row._mapping, "state": json.loads(row.state)}) for row in rows]
