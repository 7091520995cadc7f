"""The full matrix is for `make crash`; a sample of it runs with all other tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from tests.crash.cases import matrix
from tests.crash.mover import PREFIXES
from tests.marks import leave_out
from timeoutmgr.persistence import SqlPersistence

_MARKER = "crash_full"
_LEFT_OUT = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", f"{_MARKER}: the full matrix of crash points; `make crash`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the matrix out unless it is asked for by its mark."""
    leave_out(_MARKER, config, items)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Report the cases that were left out."""
    if _MARKER not in config.option.markexpr:
        terminalreporter.line(
            f"crash points: a sample ran; the matrix of {len(matrix())} deaths is `make crash`"
        )


@pytest.fixture(scope="session")
def migrating_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """The URL of a database of each kind, with the tables of two stores."""
    made: dict[str, str] = {}

    def of(kind: str) -> str:
        if kind not in made:
            made[kind] = (
                f"sqlite:///{tmp_path_factory.mktemp('migrations') / 'timeoutmgr.db'}"
                if kind == "sqlite"
                else request.getfixturevalue(f"{kind}_url")
            )
            for prefix in PREFIXES:
                with closing(SqlPersistence(made[kind], prefix=prefix)) as persistence:
                    persistence.install()
        return made[kind]

    return of
