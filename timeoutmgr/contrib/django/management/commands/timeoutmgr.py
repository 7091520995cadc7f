"""``manage.py timeoutmgr``: the command line of timeoutmgr with the settings of the project."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from django.core.management.base import BaseCommand, CommandError

from timeoutmgr.contrib.command_line import become, run

_APP: Final = "timeoutmgr.contrib.django:configuration"
_OF_DJANGO: Final = ("--settings", "--pythonpath")
"""Options that ``manage.py`` has already handled when it calls the command."""


class PassThrough(BaseCommand):  # type: ignore[misc]  # Django ships no types
    """Passes its arguments on to ``timeoutmgr``."""

    help = "Run timeoutmgr with the settings of this project: run, install, list, doctor …"
    requires_system_checks = ()

    def run_from_argv(self, argv: Sequence[str]) -> NoReturn:
        """Replace this process by the command that *argv* names."""
        become(_APP, list(_without_django(argv[2:])), {})

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Print the help of ``timeoutmgr``."""
        run(_APP, ["--help"], {})

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Accept all arguments as they are, for ``call_command``."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_given: Any, **options: Any) -> None:
        """Run the command in a child process; raise CommandError with its exit code."""
        arguments = [str(each) for each in options["arguments"]]
        code = run(_APP, arguments, {})
        if code:
            raise CommandError(
                f"timeoutmgr {' '.join(arguments)} ended with exit code {code}", returncode=code
            )


Command = PassThrough
"""The name by which Django finds the command of this module."""


def _without_django(arguments: Sequence[str]) -> Iterator[str]:
    """Yield *arguments* without the options of ``manage.py`` and their values."""
    rest = iter(arguments)
    for each in rest:
        if each in _OF_DJANGO:
            next(rest, None)
        elif not each.startswith(tuple(f"{name}=" for name in _OF_DJANGO)):
            yield each
