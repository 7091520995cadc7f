"""``timeoutmgr``: the group of commands, their exit codes, and the console entry."""

import contextlib
import importlib
import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn

import click

from timeoutmgr._version import __version__
from timeoutmgr.cli import output
from timeoutmgr.cli.audit import audit
from timeoutmgr.cli.bulk_runs import change, runs
from timeoutmgr.cli.changes import cancel, cancel_saga, reroute, reschedule, send_now
from timeoutmgr.cli.deadletters.commands import deadletters, journal
from timeoutmgr.cli.doctor.command import doctor
from timeoutmgr.cli.error_queue import errors, retry
from timeoutmgr.cli.exits import MEANINGS, Exit, exit_of
from timeoutmgr.cli.install import install, uninstall
from timeoutmgr.cli.list import list_timeouts
from timeoutmgr.cli.migrate.command import migrate
from timeoutmgr.cli.options import ENVIRONMENT, common, with_examples
from timeoutmgr.cli.output import log_to_stderr
from timeoutmgr.cli.pauses import pause, resume
from timeoutmgr.cli.pipeline.group import pipeline
from timeoutmgr.cli.recurrence import recurring
from timeoutmgr.cli.restored import restored
from timeoutmgr.cli.run import run
from timeoutmgr.cli.send import send
from timeoutmgr.cli.shared import Shared
from timeoutmgr.cli.show import show
from timeoutmgr.cli.status import status
from timeoutmgr.cli.web import web
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.message.redaction import masked


class Commands(click.Group):
    """Ends every command with an exit code; an expected error is one line, not a traceback."""

    def __init__(self, name: str | None, *, help: str = "", **settings: Any) -> None:
        super().__init__(name, help=with_examples(help), **settings)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run the command that *args* name, and exit."""
        shared = extra.setdefault("obj", Shared())
        try:
            result = super().main(
                args,
                prog_name,
                complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
            code = result if isinstance(result, int) else Exit.OK
        except click.exceptions.Abort:
            code = Exit.INTERRUPTED
        except click.ClickException as error:
            code = _usage(shared, error)
        except TimeoutManagerError as error:
            code = exit_of(error)
            _report(shared, type(error).__name__, str(error), code, type(error))
        except Exception as error:
            # An unexpected error needs its traceback, with secrets masked.
            shown = traceback.format_exception(type(error), error, from_user_code(error))
            output.print_error("".join(shown).rstrip())
            code = Exit.FAILED
            _report(shared, type(error).__name__, str(error), code)
        sys.exit(int(code))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the help."""
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), meaning) for code, meaning in MEANINGS.items()])


@click.group(
    cls=Commands,
    context_settings={"auto_envvar_prefix": ENVIRONMENT, "help_option_names": ["-h", "--help"]},
)
@common(environment=True)
@click.version_option(__version__, package_name="timeoutmgr", message="%(prog)s %(version)s")
@click.pass_obj
def cli(shared: Shared) -> None:
    """Durable delayed messages: run an endpoint, and look after its timeouts.

    The endpoint is described by a settings file (--config), by an app (--app), or by
    TIMEOUTMGR_… variables alone. The options of this group may also follow the command.

    Examples:
      timeoutmgr --config sales.toml run
      timeoutmgr send billing PaymentOverdue '{"order": 7}' --delay 14d
      timeoutmgr --json status
    """
    log_to_stderr(shared.log_level(logging.WARNING))


for command in (
    run,
    install,
    uninstall,
    send,
    list_timeouts,
    show,
    cancel,
    cancel_saga,
    reschedule,
    reroute,
    send_now,
    change,
    runs,
    pause,
    resume,
    restored,
    audit,
    recurring,
    retry,
    errors,
    deadletters,
    journal,
    migrate,
    pipeline,
    status,
    doctor,
    web,
):
    cli.add_command(command)


def main() -> NoReturn:
    """Run the command line; the console entry."""
    cli.main(prog_name="timeoutmgr")


def _usage(shared: Shared, error: click.ClickException) -> Exit:
    if shared.json:
        _report(shared, type(error).__name__, error.format_message(), Exit.USAGE)
        return Exit.USAGE
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None and error.message == context.get_help():
        output.print_error(error.message)  # a group without a command: nothing else is wrong
        return Exit.USAGE
    if context is not None:
        output.print_error(context.get_usage())
        output.print_error(f"Try '{context.command_path} --help'.")
    output.print_error(f"error: {error.format_message()}")
    return Exit.USAGE


def _report(
    shared: Shared,
    kind: str,
    text: str,
    code: Exit,
    ours: type[TimeoutManagerError] | None = None,
) -> None:
    """Print an error, and where its class *ours* is explained.

    A user of the wheel has no pages of the documentation, but each page has a title, and pydoc
    shows the text from which the page is made.
    """
    if shared.json:
        document = {"error": masked(text), "kind": kind, "exit_code": code.value}
        output.print_json(document | ({"help": ours.help_page()} if ours else {}))
        return
    output.print_error(f"error: {text}")
    if ours is not None:
        output.print_error(
            f"help: section {kind} of the page Errors; python -m pydoc {ours.__module__}.{kind}"
        )


_OURS: Final = str(Path(__file__).parent.parent)
_FRAMEWORK: Final = (
    str(Path(click.__file__).parent),
    str(Path(importlib.__file__).parent),
    contextlib.__file__,
    "<frozen importlib",
)


def from_user_code(error: BaseException) -> TracebackType | None:
    """Return the traceback of *error* from the first frame outside of our code and of frameworks.

    An error in the module of ``--app`` is shown from there; our own error is shown whole.
    """
    found = error.__traceback__
    while found is not None:
        if not found.tb_frame.f_code.co_filename.startswith((_OURS, *_FRAMEWORK)):
            return found
        found = found.tb_next
    return error.__traceback__
