"""The schema that an endpoint needs: whether an error tells that tables are missing."""

from collections.abc import Iterable

from timeoutmgr.contracts import Persistence, Transport
from timeoutmgr.database.failures import tells_of_absence
from timeoutmgr.errors import SchemaMissing, TimeoutManagerError
from timeoutmgr.features.parts import Installed


def missing_schema(
    error: Exception,
    transport: Transport,
    persistence: Persistence | None,
    installed: Iterable[Installed],
) -> SchemaMissing | None:
    """Return which tables *error* is about, if they are missing or too old; None otherwise."""
    if not tells_of_absence(error):
        return None
    try:
        if transport.database is not None:
            transport.check()
        if persistence is not None:
            persistence.check()
        for part in installed:
            part.check()
    except SchemaMissing as missing:
        return missing
    except TimeoutManagerError:
        # On SQLite the caller's own transaction keeps a check of a new file out.
        return SchemaMissing(f"{error}; run `timeoutmgr install`")
    return None
