"""``flask timeoutmgr``: the command line of timeoutmgr with the configuration of the app."""

import click
from flask.cli import ScriptInfo

from timeoutmgr.contrib.command_line import become

_AS_THEY_ARE = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def pass_through(app: str) -> click.Command:
    """Return the command, which passes its arguments on to ``timeoutmgr --app`` *app*."""

    @click.command(
        "timeoutmgr",
        short_help="Run timeoutmgr with the configuration of this app.",
        add_help_option=False,
        context_settings=_AS_THEY_ARE,
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def command(context: click.Context, arguments: tuple[str, ...]) -> None:
        info = context.ensure_object(ScriptInfo)
        if info.create_app is not None:
            raise click.ClickException(
                "the app of this command line comes from a function, which another process cannot "
                "call; use `flask --app module:function timeoutmgr`"
            )
        path = info.app_import_path
        become(app, arguments, {} if path is None else {"FLASK_APP": path})

    return command
