"""A process that migrates into a store, or aborts that; it may be told where to die.

From another store, from another product's table in the same database, or from delay levels.
"""

from __future__ import annotations

import os
from typing import Any, Final

from tests.migration.levels import names_of
from timeoutmgr.clock import SystemClock
from timeoutmgr.message.validation import Limits
from timeoutmgr.migration import MigrationLedger, Participants, Source, Target, Terms
from timeoutmgr.migration.foreign.rows import layout_called
from timeoutmgr.migration.foreign.table import ForeignTable
from timeoutmgr.migration.levels.drain import DrainParticipants, LevelsOrigin
from timeoutmgr.migration.levels.target import StoreSink
from timeoutmgr.migration.run import AnyParticipants, give_up, move_all
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.transport.kombu_transport import KombuTransport

PREFIXES: Final = ("crash_from_", "crash_into_")
"""How the tables of the two stores begin."""


def main(given: dict[str, Any]) -> int:
    """Carry out *given*; return 0 once it is done."""
    # The process must come by every point, so the history is full.
    settings = SqlSettings(history="full")
    source, target = (
        SqlPersistence(given["url"], prefix=prefix, settings=settings)
        for prefix in given["prefixes"]
    )
    parts = _parts(given, source, target)
    if given["aborts"]:
        give_up(parts)
    else:
        terms = Terms(
            endpoint=given["endpoint"],
            source=parts.source.describe(),
            target=parts.target.describe(),
            batch=given["batch"],
        )
        move_all(parts, terms)
    parts.close()
    for one in (source, target):
        one.close()
    return 0


def _parts(
    given: dict[str, Any], source: SqlPersistence, target: SqlPersistence
) -> AnyParticipants:
    clock, endpoint = SystemClock(), given["endpoint"]
    runner = f"{endpoint}-{os.getpid()}"
    into: Target = target.migration_target(endpoint, clock)
    # Where the source is no store of ours, the target keeps the ledger.
    ledger: MigrationLedger = target.migration_ledger(endpoint, clock)
    if "broker" in given:
        names = names_of(given["stem"])
        return DrainParticipants(
            source=LevelsOrigin(KombuTransport(given["broker"]), names, clock),
            sink=StoreSink(into, endpoint, Limits(), clock),
            ledger=ledger,
            runner=runner,
            chunk=given["batch"],
        )
    if "table" in given:
        rows: Source = ForeignTable(
            source.database, layout_called("nservicebus"), endpoint, clock, table=given["table"]
        )
        return Participants(source=rows, target=into, ledger=ledger, runner=runner)
    return Participants(
        source=source.migration_source(endpoint, clock),
        target=into,
        ledger=source.migration_ledger(endpoint, clock),
        runner=runner,
    )
