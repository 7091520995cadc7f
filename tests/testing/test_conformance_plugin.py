"""The plugin as a third party has it: found by its entry point, in a project of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.projects import ROOT, install, run

PARTS = """
from pathlib import Path

from timeoutmgr.persistence import MemoryPersistence, SqlDelayedMessageStore
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.sql import SqlTransport

persistence = MemoryPersistence(accept_loss=True)
make_persistence = lambda: persistence
make_transport = lambda: KombuTransport("memory://", accept_loss=True)

def make_expiring_transport():
    transport = SqlTransport(f"sqlite:///{Path(__file__).with_name('queues.db')}")
    transport.install()
    return transport

def make_delayed_store():
    return SqlDelayedMessageStore(f"sqlite:///{Path(__file__).with_name('delayed.db')}")
"""
THEIRS = """
import pytest
from parts import make_persistence as make
from timeoutmgr.testing.conformance.stores import StoreConformance

class TestTheirs(StoreConformance):
    durable, row_locks, transactions = False, True, False
    limits_text = False

    @pytest.fixture
    def make_persistence(self):
        return make

class TestBroken(TestTheirs):
    row_locks = False

def test_of_their_own():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with parts, and with the package as if it were installed."""
    (tmp_path / "parts.py").write_text(PARTS)
    install(tmp_path)
    return tmp_path


def test_a_suite_of_their_own_runs_and_nothing_is_skipped(project: Path) -> None:
    (project / "test_theirs.py").write_text(THEIRS)

    code, counts, said = run(
        project, "-k", "not Broken", "--timeoutmgr-races", "20", "test_theirs.py"
    )

    assert code == 0, said
    assert counts["passed"] > 100
    assert counts["deselected"] > 10
    assert counts["skipped"] == counts["failed"] == 0


def test_a_suite_that_claims_more_than_its_part_is_reported(project: Path) -> None:
    (project / "test_theirs.py").write_text(THEIRS)

    code, counts, said = run(project, "-k", "Broken and (capabilities or find)", "test_theirs.py")

    assert code == 1
    assert counts["failed"] == 1
    assert "test_the_capabilities_are_those_of_the_suite" in said


def test_parts_can_be_named_on_the_command_line(project: Path) -> None:
    code, counts, said = run(
        project,
        *("--pyargs", "timeoutmgr.testing.conformance.given", "--timeoutmgr-races", "20"),
        *("--timeoutmgr-persistence", "parts:make_persistence"),
        *("--timeoutmgr-transport", "parts:make_transport"),
        *("--timeoutmgr-delayed-store", "parts:make_delayed_store"),
    )

    assert code == 0, said
    assert counts["passed"] > 250


def test_cases_of_labels_and_schedules_run_if_a_named_store_has_them(project: Path) -> None:
    code, counts, said = run(
        project,
        *(
            "--pyargs",
            "timeoutmgr.testing.conformance.given",
            "-k",
            "own_schedules or labels_follow",
        ),
        *("--timeoutmgr-persistence", "parts:make_persistence"),
    )

    assert code == 0, said
    assert counts["passed"] == 2


def test_messages_of_a_named_transport_expire_if_it_says_so(project: Path) -> None:
    code, counts, said = run(
        project,
        *("--pyargs", "timeoutmgr.testing.conformance.given", "-k", "capabilities or is_over"),
        *("--timeoutmgr-transport", "parts:make_expiring_transport"),
    )

    assert code == 0, said
    assert counts["passed"] == 2


def test_a_name_without_a_function_is_refused(project: Path) -> None:
    code, _, said = run(project, "--timeoutmgr-transport", "parts")

    assert code == 4
    assert "MODULE:NAME" in said


def test_the_core_of_the_testing_package_needs_no_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "import timeoutmgr.testing, timeoutmgr.testing.faultproxy\n"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)

    assert done.returncode == 0


def test_a_run_without_a_suite_imports_nothing_of_the_package(project: Path) -> None:
    (project / "test_plain.py").write_text(
        "import sys\n"
        "def test_plain(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.has_plugin('timeoutmgr')\n"
        "    own = [name for name in sys.modules if name.partition('.')[0] == 'timeoutmgr']\n"
        "    assert own == []\n"
        "    assert not {'kombu', 'sqlalchemy', 'click', 'rich'} & set(sys.modules)\n"
    )

    code, counts, said = run(project, "test_plain.py")

    assert (code, counts["passed"]) == (0, 1), said
