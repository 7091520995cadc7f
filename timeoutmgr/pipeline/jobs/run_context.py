"""Shared by jobs: stores, progress, run ids, and errors of workers as raised there."""

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, TypeAlias

from timeoutmgr import errors as core
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.pipeline import errors as own
from timeoutmgr.pipeline.spark.conditions import raised_by_worker
from timeoutmgr.pipeline.stores import Store, identity, open_store

Progress: TypeAlias = Callable[[str], None]
"""Gets a text about the next step of a job."""

_MODULES: Final = (core.__name__, own.__name__)


def silent(_text: str) -> None:
    """Hear nothing."""


def new_run_id(job: str, now: datetime | None = None) -> str:
    """Return an id for a run of *job* that no other has, and that sorts by time."""
    at = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%S")
    return f"{job}-{at}-{secrets.token_hex(3)}"


def each_store(names: Iterable[str]) -> list[Store]:
    """Open the stores called *names*, each store once, under the first of its names.

    Two endpoints may keep theirs in the same tables, which hold the rows of both: read for each
    name, every message would count twice. Raises StorageUnavailable.
    """
    found: dict[str, Store] = {}
    for name in names:
        store = open_store(name)
        found.setdefault(identity(store), store)
    return [*found.values()]


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise our errors that come back from Spark's workers as text with their own classes."""
    try:
        yield
    except TimeoutManagerError:
        raise
    except Exception as error:  # pyspark has one tree of errors for each way to Spark
        module, _, name = (raised := raised_by_worker(error))[0].rpartition(".")
        kind = error_called(name) if module in _MODULES else None
        if kind is None:
            raise
        raise error_of(kind, raised[1]) from error


def error_of(kind: type[TimeoutManagerError], sentence: str) -> TimeoutManagerError:
    """Return an error of *kind* that says *sentence*; its attributes stayed in the worker."""
    raised = kind.__new__(kind)
    Exception.__init__(raised, sentence)
    return raised


def error_called(name: str) -> type[TimeoutManagerError] | None:
    """Return our error of that *name*; None where there is none."""
    found = getattr(own, name, None) or getattr(core, name, None)
    is_ours = isinstance(found, type) and issubclass(found, TimeoutManagerError)
    return found if is_ours else None
