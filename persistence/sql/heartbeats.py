"""Heartbeats: what each process says of itself, at most about once a minute."""

import json
import os
from collections.abc import Mapping

from sqlalchemy import Connection, delete, select, update

from timeoutmgr.contracts import ProcessRecord
from timeoutmgr.crashpoints import reach

from .context import StoreContext
from .inserting import insert_missing
from .rows import to_json


def heartbeat(context: StoreContext, owner: str, state: Mapping[str, str]) -> None:
    """Write the heartbeat of *owner*, and see that its life is still held.

    Others think it gone once the server closed the connection that held it.
    """
    context.lives.renew(owner)
    processes = context.tables.processes

    def work(connection: Connection) -> None:
        said = to_json(state)
        mine = update(processes).where(processes.c.owner == owner)
        # One statement but for the first: an idle process is to leave the database alone.
        if connection.execute(mine.values(heartbeat=context.now_value, state=said)).rowcount:
            return
        now = context.now(connection)
        fixed = {
            "owner": owner,
            "endpoint": context.endpoint,
            "host": context.node,
            "pid": os.getpid(),
        }
        first = fixed | {"started": now, "heartbeat": now, "state": said}
        insert_missing(connection, processes, [first])

    context.database.run(work)
    reach("heartbeats.written")


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
