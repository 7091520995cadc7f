"""``timeoutmgr top``: the dashboard's numbers in a terminal."""

import logging
from datetime import timedelta

import click

from timeoutmgr.cli.options import Command, every
from timeoutmgr.cli.output import is_terminal
from timeoutmgr.cli.shared import Shared
from timeoutmgr.errors import ConfigurationError


@click.command(cls=Command)
@every("Interval at which the screen reads newer numbers: 500ms, 2, 1m.")
def top(shared: Shared, every: timedelta) -> None:
    """Show the dashboard's numbers in the terminal, until q is pressed.

    Like the dashboard, the screen causes at most one statement a second, and shows a lower bound or
    an estimate for many timeouts. It changes nothing. If the store or the broker is away, it shows
    the last numbers and their age.

    Examples:
      timeoutmgr top
      timeoutmgr --config sales.toml top --every 10s
    """
    if shared.json:
        raise click.UsageError("top draws a screen; timeoutmgr --json status prints the numbers")
    if not is_terminal():
        raise click.UsageError("top needs a terminal; timeoutmgr status prints the numbers")
    try:
        from timeoutmgr.cli.screen import Screen
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"top needs the package {error.name}; install timeoutmgr[top]"
        ) from error
    from timeoutmgr.endpoint.endpoint import Endpoint

    endpoint = Endpoint(shared.configuration())
    # A log line would overwrite the screen, which itself shows unavailable parts.
    logging.disable()
    try:
        Screen(endpoint, every.total_seconds()).run()
    finally:
        logging.disable(logging.NOTSET)
        endpoint.close()
