"""The scheme of the SQL queue's URLs is known to kombu and Celery."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CLASS = "timeoutmgr.transport.sql.kombu_transport:KombuSqlTransport"


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("import timeoutmgr", "'timeoutmgr+sqlite:///queue.db'"),
        ("", f"'sqlite:///queue.db', transport='{CLASS}'"),
    ],
    ids=["import", "class path"],
)
def test_a_program_opens_a_connection_of_kombu(tmp_path: Path, line: str, arguments: str) -> None:
    code = (
        f"{line}\nimport kombu\n"
        f"with kombu.Connection({arguments}) as connection:\n"
        "    connection.ensure_connection(max_retries=1)\n"
        "    assert connection.transport.driver_type == 'timeoutmgr'\n"
    )

    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)

    assert (tmp_path / "queue.db").exists()


def test_celerys_command_knows_the_scheme_without_an_import(tmp_path: Path) -> None:
    broker = f"timeoutmgr+sqlite:///{tmp_path}/queue.db"
    command = [sys.executable, "-m", "celery", "-b", broker, "inspect", "ping", "-t", "0.1"]

    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "No nodes replied" in said.stdout + said.stderr
    assert (tmp_path / "queue.db").exists()
