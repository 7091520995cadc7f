"""The matrix runs each test on every pair with the needed abilities, and counts the rest as n/a."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.matrix import PAIRS, Pair
from tests.acceptance.not_applicable import note
from tests.acceptance.place import Party, Place, stopping
from timeoutmgr.endpoint.configuration import persistence_from_url, transport_from_url


@pytest.fixture(scope="session")
def installed_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the tables of queues and store; to create them takes a third of a test."""
    file = tmp_path_factory.mktemp("installed") / "timeoutmgr.db"
    for part in (
        persistence_from_url(f"sqlite:///{file}"),
        transport_from_url(f"sqlite:///{file}"),
    ):
        with contextlib.closing(part):
            part.install()
    return file


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, installed_file: Path, unique: str
) -> Iterator[Place]:
    """A pair of transport and store, with everything a test opens there closed at its end."""
    pair: Pair = getattr(request, "param", PAIRS[0])
    marker = request.node.get_closest_marker("matrix")
    if marker is None or marker.kwargs["installed"]:
        shutil.copy(installed_file, tmp_path)
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'timeoutmgr.db'}"}
    urls |= {server: request.getfixturevalue(f"{server}_url") for server in sorted(pair.servers)}
    with stopping(Place(pair, urls, unique)) as made:
        yield made


@pytest.fixture
def party(place: Place) -> Party:
    """A running endpoint with a timeout manager; its inbox gets every message."""
    return Party(place).start()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks of the tests here."""
    config.addinivalue_line(
        "markers", "matrix(needs, pairs, installed): on which pairs a test runs"
    )
    config.addinivalue_line("markers", "behaviour(*numbers): the behaviours that a test holds")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each pair that has the parts that the test needs."""
    marker = metafunc.definition.get_closest_marker("matrix")
    if marker is None or "place" not in metafunc.fixturenames:
        return
    needs, pairs = marker.kwargs["needs"], marker.kwargs["pairs"]
    able = [pair for pair in pairs if needs <= pair.capabilities]
    metafunc.parametrize("place", able, ids=[pair.id for pair in able], indirect=True)
    for pair in pairs:
        if pair not in able:
            lacks = ", ".join(sorted(needs - pair.capabilities))
            note(metafunc.config, f"{metafunc.definition.nodeid}[{pair.id}]: no {lacks}")
