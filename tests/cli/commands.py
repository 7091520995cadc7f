"""All commands of the command line, imported."""

from __future__ import annotations

from typing import Final

import click

from timeoutmgr.cli.main import cli


def _imported(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


COMMANDS: Final = {name: _imported(name) for name in cli.list_commands(click.Context(cli))}
"""The commands by their names, in the order of the help."""
