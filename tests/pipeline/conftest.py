"""Stores of every kind, named by settings files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chaos.forkserver_client import ForkServer
from tests.pipeline.killed_jobs import MODULES
from tests.pipeline.lakes import ON_S3, S3, Watcher, made_place, serving
from timeoutmgr.pipeline.stores import Store, open_store

FORMATS = ("delta", "iceberg", "parquet")
KINDS = ("sqlite", "postgres", "mysql")
SETTINGS = """
endpoint = "sales"
transport = "memory://"
persistence = "{url}"
features = ["timeout-manager"]
accept_loss = true

[persistence_options]
prefix = "{prefix}_"
history = "full"
"""


def installed(
    request: pytest.FixtureRequest, kind: str, folder: Path, name: str, in_file: str = ""
) -> Store:
    """Return a new store of a kind of database, named by a file in *folder*.

    Its tables are named by *name*, those in a file of their own by *in_file*: tables of a name that
    was before are not made anew.
    """
    url = (
        f"sqlite:///{folder / name}.db"
        if kind == "sqlite"
        else request.getfixturevalue(f"{kind}_url")
    )
    prefix = in_file if in_file and kind == "sqlite" else name
    path = folder / f"{name}.toml"
    path.write_text(SETTINGS.format(url=url, prefix=prefix))
    store = open_store(str(path))
    store.persistence.install()
    return store


@pytest.fixture
def store_of(
    request: pytest.FixtureRequest, tmp_path: Path, unique: str
) -> Iterator[Callable[[str], Store]]:
    """Installed stores of a kind of database, each with tables of its own."""
    made: list[Store] = []

    def of(kind: str) -> Store:
        number = len(made)
        store = installed(request, kind, tmp_path, f"{unique}{number}", f"tables_of_{number}")
        made.append(store)
        return store

    yield of

    for store in made:
        store.persistence.close()


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, store_of: Callable[[str], Store]) -> Store:
    """A store of every kind."""
    return store_of(request.param)


@pytest.fixture
def postgres(store_of: Callable[[str], Store]) -> Store:
    """A store in PostgreSQL."""
    return store_of("postgres")


@pytest.fixture
def sqlite(store_of: Callable[[str], Store]) -> Store:
    """A store in a SQLite file."""
    return store_of("sqlite")


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """A server that speaks S3."""
    with serving() as made:
        yield made


@pytest.fixture(scope="session")
def watcher() -> Iterator[Watcher]:
    """Another process, which reads tables."""
    made = Watcher()
    yield made
    made.close()


@pytest.fixture(scope="session")
def job_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """The process from which jobs are forked that a test kills."""
    with closing(ForkServer(tmp_path_factory.mktemp("jobserver") / "log", MODULES)) as made:
        yield made


@pytest.fixture
def place_of(
    request: pytest.FixtureRequest, tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Places of history tables of a kind; this process finds their servers."""

    def of(kind: str) -> str:
        s3 = request.getfixturevalue("s3") if kind in ON_S3 else None
        place, variables = made_place(kind, tmp_path, unique.replace("_", "-"), s3)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return place

    return of


@pytest.fixture(params=FORMATS)
def place(request: pytest.FixtureRequest, place_of: Callable[[str], str]) -> str:
    """The place of a history table, of every format."""
    return place_of(request.param)
