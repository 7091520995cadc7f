"""Start a consumer in a process of its own, and kill it while it has leases."""

import subprocess
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[3]


def kill_holding(url: str, prefix: str, queue: str, count: int, how: str = "ours") -> None:
    """Return when a consumer has leased *count* messages of *queue* and was killed by SIGKILL."""
    arguments = [url, prefix, queue, str(count), how]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.transport.sql.child", *arguments],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "leased\n"
        finally:
            child.kill()
