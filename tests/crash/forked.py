"""Entry of the processes that crash tests fork: the crash point is armed after the fork."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Final

from chaos.crash_command import arm_from_environment

ENTRY: Final = f"{__name__}:main"


def main() -> int:
    """Arm the crash point of the environment; run the worker that the argument describes."""
    arm_from_environment()
    given = json.loads(sys.argv[1])
    module = importlib.import_module(given.get("worker", "tests.crash.worker"))
    return int(module.main(given))
