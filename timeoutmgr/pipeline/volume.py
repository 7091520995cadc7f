"""Estimates, before Spark starts, how much a job has to read."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from sqlalchemy import Table, func, literal, select

from timeoutmgr.pipeline.options import DELTA
from timeoutmgr.pipeline.stores import Store

FEW_ROWS: Final = 200_000
"""Maximum rows of a table with which a job ends before Java's second compiler pays off."""
FEW_BYTES: Final = 32 << 20


def is_little(stores: Iterable[Store], inputs: Iterable[str]) -> bool:
    """Return whether *stores* hold few rows and *inputs* few bytes.

    An input is a file, a folder or a history table. False if an input is not in this machine's
    files. Raises StorageUnavailable.
    """
    return all(map(_has_few_bytes, inputs)) and all(map(_has_few_rows, stores))


def _has_few_rows(store: Store) -> bool:
    return all(
        _count(store, one) <= FEW_ROWS for one in (store.tables.timeouts, store.tables.history)
    )


def _count(store: Store, table: Table) -> int:
    """Count the rows of *table*; read only as many as needed to tell few from many."""
    some = select(literal(1).label("one")).select_from(table).limit(FEW_ROWS + 1).subquery()
    with store.database.read() as connection:
        return int(connection.scalar(select(func.count()).select_from(some)) or 0)


def _has_few_bytes(place: str) -> bool:
    path = Path(place.removeprefix(DELTA))
    try:
        return path.exists() and sum(map(os.path.getsize, _files(path))) <= FEW_BYTES
    except OSError:  # another process has just removed a file, or no folder can have that name
        return False


def _files(path: Path) -> Iterator[Path]:
    return (one for one in path.rglob("*") if one.is_file()) if path.is_dir() else iter((path,))
