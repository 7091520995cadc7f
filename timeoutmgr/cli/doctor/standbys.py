"""PostgreSQL standbys: whether a fail-over loses accepted messages."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Row, text

from timeoutmgr.cli.doctor.findings import ok, warn
from timeoutmgr.contracts.reports import Finding
from timeoutmgr.database import Database

_CHECK: Final = "fail-over"
_SYNCHRONOUS: Final = frozenset({"sync", "quorum"})
_WITHOUT_WAIT: Final = frozenset({"off", "local"})
"""Values of synchronous_commit for which no commit waits for a standby."""
# Logical subscribers and running base backups are not standbys.
_STANDBYS: Final = text(
    "SELECT application_name, sync_state, "
    "pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn)::bigint AS behind "
    "FROM pg_stat_replication WHERE NOT pg_is_in_recovery() "
    "AND state IS DISTINCT FROM 'backup' AND pid NOT IN (SELECT active_pid "
    "FROM pg_replication_slots WHERE slot_type = 'logical' AND active_pid IS NOT NULL) "
    "ORDER BY application_name"
)


def standby_findings(database: Database) -> Iterator[Finding]:
    """Yield a warning if there are standbys but no commit waits for any."""
    with database.read() as connection:
        found = connection.execute(_STANDBYS).all()
        waits = connection.execute(text("SHOW synchronous_commit")).scalar_one()
    if not found:
        return
    if any(each.sync_state is None for each in found):
        yield ok(
            _CHECK,
            f"not checked: this user does not see whether the {len(found)} standbys are "
            "synchronous; GRANT pg_read_all_stats shows it",
        )
    elif waits not in _WITHOUT_WAIT and any(each.sync_state in _SYNCHRONOUS for each in found):
        yield ok(_CHECK, "each commit waits for a synchronous standby")
    else:
        yield _lossy(found, waits)


def _lossy(standbys: Sequence[Row[Any]], waits: str) -> Finding:
    names = ", ".join(f"{each.application_name} ({each.behind} bytes behind)" for each in standbys)
    return warn(
        _CHECK,
        f"no commit waits for a standby: {names}, synchronous_commit = {waits}; a fail-over "
        "loses the timeouts that were accepted last",
        "set synchronous_standby_names, and synchronous_commit = on",
    )
