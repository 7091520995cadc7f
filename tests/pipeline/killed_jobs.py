"""A process that restores or erases, and is killed at one of its steps."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from typing import Any, Final

from sqlalchemy import Engine, event

from timeoutmgr.clock import SystemClock
from timeoutmgr.pipeline.jobs.erase import erase
from timeoutmgr.pipeline.jobs.restore import restore
from timeoutmgr.pipeline.lake_options import EraseOptions, RestoreOptions

ENTRY: Final = f"{__name__}:main"
MODULES: Final = (__name__, "timeoutmgr.settings.file", "timeoutmgr.persistence", "sqlite3")
"""Modules that the fork server imports ahead."""
FILES: Final = {"os.link", "os.rename", "os.remove"}
"""What Python calls the changes of a folder, before each."""


def main() -> int:
    """Run the job that the argument describes; die at its step ``die_at``, if it has so many."""
    given = json.loads(sys.argv[1])
    steps = itertools.count(1)

    def step(*_given: Any) -> None:
        if next(steps) == given["die_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "commit", step)  # before each commit, and so after all that precedes it
    sys.addaudithook(lambda name, _arguments: step() if name in FILES else None)
    options: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in given["options"].items()
    }
    if given["job"] == "erase":
        erase(EraseOptions(**options), clock=SystemClock(), progress=step)
    else:
        restore(RestoreOptions(**options), clock=SystemClock(), progress=step)
    return 0
