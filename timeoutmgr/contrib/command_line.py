"""Commands of a framework's own command line, passed on to ``timeoutmgr`` in its own process.

That process handles signals, exit codes and ``run --processes`` as usual.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn


def become(app: str, arguments: Sequence[str], more: Mapping[str, str]) -> NoReturn:
    """Replace this process by ``timeoutmgr`` with the configuration *app*.

    *more* are environment variables for it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    command = _command(app, arguments)
    os.execve(command[0], command, _environment(more))


def run(app: str, arguments: Sequence[str], more: Mapping[str, str]) -> int:
    """Run ``timeoutmgr`` as ``become`` does, in a child process; return its exit code."""
    return subprocess.run(_command(app, arguments), env=_environment(more)).returncode


def _command(app: str, arguments: Sequence[str]) -> list[str]:
    # At the end of the group's options: a command may follow, or only --help.
    return [sys.executable, "-m", "timeoutmgr", "--app", app, *arguments]


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment, with this process' import path."""
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)
    return {**os.environ, **more, "PYTHONPATH": path}
