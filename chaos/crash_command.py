"""The command line with a crash point armed: ``python -m chaos.crash_command run …``.

The variable ``TIMEOUTMGR_CRASHPOINT=name:nth`` says where the process dies. The command
``timeoutmgr`` itself does not read it.
"""

import os
from typing import Final

from timeoutmgr.crashpoints import arm

VARIABLE: Final = "TIMEOUTMGR_CRASHPOINT"


def arm_from_environment() -> None:
    """Arm the crash point that the environment names; raise ConfigurationError for nonsense."""
    setting = os.environ.get(VARIABLE)
    if setting:
        arm(setting)


def main() -> None:
    """Arm the crash point, then run the command in the arguments."""
    arm_from_environment()
    from timeoutmgr.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
