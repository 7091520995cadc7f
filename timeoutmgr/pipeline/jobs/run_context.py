"""Helpers that jobs share: stores, progress, run ids, and the original errors of workers."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, TypeAlias

from timeoutmgr import errors as core
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.pipeline import errors as own
from timeoutmgr.pipeline.spark.conditions import raised_by_worker
from timeoutmgr.pipeline.stores import Store, identity, open_store

Progress: TypeAlias = Callable[[str], None]
"""Receives a text about the next step of a job."""

_RAISED: Final[Mapping[str, Mapping[str, object]]] = {
    one.__name__: vars(one) for one in (core, own)
}


def silent(_text: str) -> None:
    """Ignore progress."""


def new_run_id(job: str) -> str:
    """Return a unique id for a run of *job*; ids sort by time."""
    return f"{job}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def each_store(names: Iterable[str]) -> list[Store]:
    """Open the stores *names*, each store once under the first of its names.

    Two endpoints may use the same tables. If these were read for each name, every message would
    count twice. Raises StorageUnavailable.
    """
    found: dict[str, Store] = {}
    for name in names:
        store = open_store(name)
        found.setdefault(identity(store), store)
    return [*found.values()]


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise errors of Spark's workers, which come back as text, with their original classes."""
    try:
        yield
    except TimeoutManagerError:
        raise
    except Exception as error:  # pyspark has separate error trees for local and Connect
        full_name, sentence = raised_by_worker(error)
        module, _, name = full_name.rpartition(".")
        kind = _RAISED.get(module, {}).get(name)
        if not (isinstance(kind, type) and issubclass(kind, TimeoutManagerError)):
            raise
        raised = kind.__new__(kind)  # without __init__: the attributes stayed in the worker
        Exception.__init__(raised, sentence)
        raise raised from error
