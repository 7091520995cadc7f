"""The parent of Spark's Python workers, which imports ahead of them what they need.

Spark has a parent for each kind of worker, and ends workers that are idle for a minute: by itself
every new worker imports it all anew, which takes longer than what it is there for.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Final

from pyspark.daemon import manager

MODULES: Final = (
    *("timeoutmgr.pipeline.source", "timeoutmgr.settings.file", "timeoutmgr.persistence"),
    *("sqlite3", "adbc_driver_postgresql.dbapi"),
)
"""Modules that workers of the data source need; none of them starts a thread of Python."""
_ASKS_NO_STORE: Final = "pyspark.sql.worker.lookup_data_sources"


def import_ahead(kind: str) -> None:
    """Import what workers of that *kind* need."""
    for name in (kind, *(MODULES if kind != _ASKS_NO_STORE else ())):
        importlib.import_module(name)


if __name__ == "__main__":
    import_ahead(sys.argv[1])
    gc.freeze()  # each worker collects garbage after each task: leave the modules out
    manager()
