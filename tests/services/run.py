"""One run of the tests: its folder, its names, and the names of crashed runs."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

RUN_VARIABLE = "TIMEOUTMGR_TEST_RUN"
"""The environment variable that every process of a run inherits: the run's folder."""

_FOLDER_PREFIX = "timeoutmgr-tests-"
_NAME = re.compile(r"tmtest_(?P<started>[0-9]{9,})_(?P<run>[0-9a-f]{6})_[a-z0-9]+")
_OLD = 3600
"""Seconds after which a run is taken for crashed, unless its controller is alive here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run that this process belongs to."""

    folder: Path
    started: int
    id: str

    def name(self, worker: str) -> str:
        """Return a name for the things that *worker* makes on a server, with run and time."""
        return f"tmtest_{self.started}_{self.id}_{worker}"

    def owns(self, name: str) -> bool:
        """Whether this run made *name*, or a run that crashed."""
        match = _NAME.fullmatch(name)
        return match is not None and (match["run"] == self.id or has_crashed(name, self.started))


def begin() -> Run:
    """Start a run: make its folder and mark this process and its children."""
    started, run_id = int(time.time()), secrets.token_hex(3)
    folder = Path(tempfile.gettempdir(), f"{_FOLDER_PREFIX}{started}-{run_id}-{os.getpid()}")
    folder.mkdir()
    # Servers with a user of their own must reach their folders below this folder.
    folder.chmod(0o755)
    os.environ[RUN_VARIABLE] = str(folder)
    return Run(folder=folder, started=started, id=run_id)


def joined() -> Run:
    """Return the run whose controller started this process."""
    folder = Path(os.environ[RUN_VARIABLE])
    started, run_id, _ = folder.name.removeprefix(_FOLDER_PREFIX).split("-")
    return Run(folder=folder, started=int(started), id=run_id)


def has_crashed(name: str, now: int) -> bool:
    """Whether a run made *name* an hour before *now* or earlier, and no longer runs.

    A run on another machine, whose folder is not here, counts as crashed by its age alone.
    """
    match = _NAME.fullmatch(name)
    if match is None or int(match["started"]) >= now - _OLD:
        return False
    return not any(map(_is_controlled, _folders(match["run"])))


def crashed() -> list[Path]:
    """Return the folders of runs whose controller is gone."""
    return [folder for folder in _folders() if not _is_controlled(folder)]


def remove(folder: Path) -> None:
    """Remove the folder of a run, also while another run removes it."""
    shutil.rmtree(folder, ignore_errors=True)


def _folders(run_id: str = "*") -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*-{run_id}-*"))


def _is_controlled(folder: Path) -> bool:
    """Whether the controller of the run in *folder* is alive."""
    pid = folder.name.rpartition("-")[2]
    if not pid.isdigit():
        return True  # not a folder of ours
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's, and alive
    return True
