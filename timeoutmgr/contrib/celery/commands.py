"""``celery -A proj timeouts …``: the commands of ``timeoutmgr`` for the stored tasks of an app.

Celery's command line loads this module by its entry point before it opens a broker, so it also
knows ``timeoutmgr+postgresql://…`` as a broker.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import click
from celery.app.utils import find_app

from timeoutmgr.contrib.celery import takeover
from timeoutmgr.contrib.celery.delays import DELAYS, delays_of
from timeoutmgr.contrib.command_line import become
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.transport.sql import register

register()
assert takeover, "the import adds a command to celery inspect"

APP = "TIMEOUTMGR_CELERY_APP"
"""The environment variable that names the app for a command's process."""


@click.command(
    "timeouts",
    short_help="Run, list, cancel and check the stored tasks of an app.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def timeouts(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Give *arguments* on to ``timeoutmgr``, with the endpoint of the app's DurableDelays."""
    app: Any = context.obj.app
    if DELAYS not in vars(app):
        raise click.ClickException(
            f"app {app.main!r} has no durable delays; add DurableDelays(app, store=…) to it"
        )
    assert context.parent is not None, "it is a command of celery's group"
    given = context.parent.params["app"]
    name = given if isinstance(given, str) else _path_of(app)
    become(f"{__name__}:{configuration.__name__}", arguments, {APP: name})


def _path_of(app: Any) -> str:
    """Return module and name of *app*: Celery 5.3 passes only the app, not its path."""
    for module, found in list(sys.modules.items()):
        known = vars(found) if isinstance(found, ModuleType) and module != "__main__" else {}
        for name, value in list(known.items()):
            if value is app:
                return f"{module}:{name}"
    raise click.ClickException(
        f"no module has the app {app.main!r}; give its path: celery -A module:app timeouts …"
    )


def configuration() -> EndpointConfiguration:
    """Return the configuration of the environment's app. Raises ConfigurationError."""
    return delays_of(find_app(os.environ[APP])).configuration()
