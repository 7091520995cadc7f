"""A process of the next version: it upgrades the tables, then works beside this version.

The next version is this code with one more revision, which adds a table, and to three tables a
column with a default and an index on the column, as ADR 41 allows.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timeoutmgr import Endpoint
from timeoutmgr.database.upgrade import folder_of, head

from .traffic import sender

_STORE = "timeoutmgr.persistence:sql/migrations"
_HEAD = head(_STORE)
_OURS = _HEAD.partition("since")[0]
_NEXT = f"{int(_OURS) + 1:04}since{_OURS}"
_REVISION = f'''\
from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table
from timeoutmgr.database.indexes import create_index_patiently
from timeoutmgr.database.upgrade import (
    add_missing_columns, create_missing, revision_attributes
)

revision, down_revision = "{_NEXT}", "{_HEAD}"
branch_labels = depends_on = None


def upgrade():
    given = revision_attributes()
    prefix, metadata = given["prefix"], MetaData(schema=given["schema"])
    create_missing(Table(f"{{prefix}}gadgets", metadata, Column("id", Integer, primary_key=True)))
    for name in ("timeouts", "timeout_keys", "timeout_history"):
        made = Table(f"{{prefix}}{{name}}", metadata, Column("endpoint", String(255)))
        gadget = Column("gadget", String(20), server_default="none")
        add_missing_columns(made, gadget)
        made.append_column(gadget._copy())
        create_index_patiently(Index(f"{{prefix}}{{name}}_gadgets", made.c.endpoint, made.c.gadget))
'''


@contextmanager
def running(url: str) -> Iterator["subprocess.Popen[str]"]:
    """Start the process, which prints a line once it has upgraded and runs; end it at the end."""
    program = [sys.executable, "-m", "harness.next_version", url]
    pipe = subprocess.PIPE
    folder = Path(__file__).parents[1]
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, cwd=folder) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def _run(url: str) -> None:
    from timeoutmgr.persistence.sql import persistence

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "migrations")
        shutil.copytree(folder_of(_STORE), folder)
        (folder / "versions" / f"{_NEXT}_gadgets.py").write_text(_REVISION)
        # The constant of the next version's package: its own folder.
        persistence._MIGRATIONS = folder
        with Endpoint(sender(url)):
            print("running", flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    _run(sys.argv[1])
