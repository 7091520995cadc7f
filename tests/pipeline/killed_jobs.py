"""A process that restores, erases or compacts, and is killed at one of its steps."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from typing import Any, Final

from sqlalchemy import Engine, event

from tests.pipeline.lakes import S3
from timeoutmgr.clock import SystemClock
from timeoutmgr.pipeline.jobs.compact import compact
from timeoutmgr.pipeline.jobs.erase import erase
from timeoutmgr.pipeline.jobs.restore import restore
from timeoutmgr.pipeline.lake_options import CompactOptions, EraseOptions, RestoreOptions

JOBS: Final[dict[str, tuple[Any, Any]]] = {
    "erase": (erase, EraseOptions),
    "restore": (restore, RestoreOptions),
    "compact": (compact, CompactOptions),
}
ENTRY: Final = f"{__name__}:main"
MODULES: Final = (
    *(__name__, "timeoutmgr.settings.file", "timeoutmgr.persistence", "sqlite3"),
    "timeoutmgr.pipeline.lake.delta",
)
"""Modules that the fork server imports ahead."""
FILES: Final = {"os.link", "os.rename", "os.remove"}
"""What Python calls the changes of a folder, before each."""


def main() -> int:
    """Run the job that the argument describes; die at its step ``die_at``, if it has so many.

    With the URL ``s3`` the steps are the requests that change something there.
    """
    given = json.loads(sys.argv[1])
    steps = itertools.count(1)
    os.environ.update(given["environ"])
    if given["s3"] is not None:
        S3(given["s3"]).kill(os.getpid(), given["die_at"])
        given["die_at"] = 0

    def step(*_given: Any) -> None:
        if next(steps) == given["die_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "commit", step)  # before each commit, and so after all that precedes it
    sys.addaudithook(lambda name, _arguments: step() if name in FILES else None)
    options: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in given["options"].items()
    }
    job, made = JOBS[given["job"]]
    job(made(**options), clock=SystemClock(), progress=step)
    return 0
