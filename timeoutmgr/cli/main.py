"""``timeoutmgr``: the group of commands, their exit codes, and the console entry."""

import contextlib
import errno
import importlib
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn

import click

from timeoutmgr._version import __version__
from timeoutmgr.cli import output
from timeoutmgr.cli.exits import MEANINGS, Exit, exit_of
from timeoutmgr.cli.options import ENVIRONMENT, common, with_examples
from timeoutmgr.cli.output import log_to_stderr
from timeoutmgr.cli.shared import Shared
from timeoutmgr.errors import ConfigurationError, TimeoutManagerError
from timeoutmgr.message.redaction import masked

COMMANDS: Final = {
    "run": "run:run",
    "install": "install:install",
    "uninstall": "install:uninstall",
    "send": "send:send",
    "list": "list:list_timeouts",
    "show": "show:show",
    "cancel": "changes:cancel",
    "cancel-saga": "changes:cancel_saga",
    "reschedule": "changes:reschedule",
    "reroute": "changes:reroute",
    "send-now": "changes:send_now",
    "change": "bulk_runs:change",
    "runs": "bulk_runs:runs",
    "pause": "pauses:pause",
    "resume": "pauses:resume",
    "restored": "restored:restored",
    "audit": "audit:audit",
    "recurring": "recurrence:recurring",
    "retry": "error_queue:retry",
    "errors": "error_queue:errors",
    "deadletters": "deadletters.commands:deadletters",
    "journal": "deadletters.commands:journal",
    "migrate": "migrate.command:migrate",
    "pipeline": "pipeline.group:pipeline",
    "status": "status:status",
    "doctor": "doctor.command:doctor",
    "web": "web:web",
    "top": "top:top",
}
"""Every command and its module, in the order of the help."""


class Commands(click.Group):
    """Ends every command with an exit code; an expected error prints one line, not a traceback.

    A command is imported on demand: loading the modules of all commands takes longer than most
    commands take to run.
    """

    def __init__(self, name: str | None, *, help: str = "", **settings: Any) -> None:
        super().__init__(name, help=with_examples(help), **settings)

    def main(self, args: Sequence[str] | None = None, *given: Any, **extra: Any) -> NoReturn:
        """Run the command that *args* name, and exit."""
        output.spell_out_missing_characters()
        shared = extra.setdefault("obj", Shared())
        run = partial(super().main, args, *given, **extra | {"standalone_mode": False})
        sys.exit(int(_ended(shared, run, sys.argv[1:] if args is None else args)))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command *cmd_name*, or None."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        found: click.Command = getattr(
            importlib.import_module(f"timeoutmgr.cli.{module}"), attribute
        )
        return found

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), meaning) for code, meaning in MEANINGS.items()])


@click.group(
    cls=Commands,
    context_settings={"auto_envvar_prefix": ENVIRONMENT, "help_option_names": ["-h", "--help"]},
    params=common(environment=True),
)
@click.version_option(__version__, package_name="timeoutmgr", message="%(prog)s %(version)s")
@click.pass_obj
def cli(shared: Shared) -> None:
    """Durable delayed messages: run an endpoint, and manage its timeouts.

    A settings file (--config), an app (--app), or only TIMEOUTMGR_… variables describe the
    endpoint. The options of this group may also follow the command.

    Examples:
      timeoutmgr --config sales.toml run
      timeoutmgr send billing PaymentOverdue '{"order": 7}' --delay 14d
      timeoutmgr --json status
    """
    log_to_stderr(shared.log_level(logging.WARNING))


def main() -> NoReturn:
    """Run the command line; the console entry."""
    cli.main(prog_name="timeoutmgr")


def _ended(shared: Shared, run: Callable[[], object], args: Sequence[str]) -> int:
    """Return the exit code of *run*; an error is printed."""
    try:
        with _without_exit_of_app():
            result = run()
        output.flush()
        return result if isinstance(result, int) else Exit.OK
    except click.exceptions.Abort:
        return Exit.INTERRUPTED
    except click.ClickException as error:
        return _usage(shared, error)
    except TimeoutManagerError as error:
        code = exit_of(error)
        _report(shared, type(error).__name__, str(error), code, type(error))
        return code
    except Exception as error:
        if isinstance(error, OSError) and output.is_of_output(error):
            return _unwritten(error)
        return _unexpected(shared, error, args)


def _unexpected(shared: Shared, error: Exception, args: Sequence[str]) -> Exit:
    bad = next((one for one in args if one.encode(errors="ignore").decode() != one), None)
    if isinstance(error, UnicodeEncodeError) and bad is not None:
        return _usage(shared, click.UsageError(f"{bad!a} is not UTF-8 text"))
    # An unexpected error needs its traceback, with secrets masked.
    shown = traceback.format_exception(type(error), error, from_user_code(error))
    output.print_error("".join(shown).rstrip())
    _report(shared, type(error).__name__, str(error), Exit.FAILED)
    return Exit.FAILED


def _unwritten(error: OSError) -> Exit:
    """Report that output cannot be written, except to a closed pipe, whose reader is done."""
    output.give_up_stdout()
    if error.errno != errno.EPIPE:
        with contextlib.suppress(OSError):  # standard error may be on the same full disk
            output.print_error(
                f"error: the output cannot be written: {error.strerror or error}; the command may "
                "have done its work by then, so check before you repeat it"
            )
    return Exit.FAILED


@contextlib.contextmanager
def _without_exit_of_app() -> Iterator[None]:
    """Raise ConfigurationError if the app calls ``sys.exit``: its code would be the command's."""
    try:
        yield
    except SystemExit as error:
        frames = [frame for frame, _line in traceback.walk_tb(error.__traceback__)]
        if not any(frame.f_code is Shared.configuration.__code__ for frame in frames):
            raise  # click's own exit, such as after a shell completion
        found = from_user_code(error)
        place = "" if found is None else f" in {found.tb_frame.f_code.co_filename}"
        raise ConfigurationError(
            f"the module of --app called sys.exit({error.code!r:.80}){place}; keep such a call "
            "behind: if __name__ == '__main__'"
        ) from error


def _usage(shared: Shared, error: click.ClickException) -> Exit:
    code = Exit(error.exit_code)
    if shared.json:
        _report(shared, type(error).__name__, error.format_message(), code)
        return code
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None and error.message == context.get_help():
        output.print_error(error.message)  # a group without a command: nothing else is wrong
        return Exit.USAGE
    if context is not None:
        output.print_error(context.get_usage())
        output.print_error(f"Try '{context.command_path} --help'.")
    output.print_error(f"error: {error.format_message()}")
    return code


def _report(
    shared: Shared, kind: str, text: str, code: Exit, ours: type[TimeoutManagerError] | None = None
) -> None:
    """Print an error, and the place where its class *ours* is explained.

    A user of the wheel does not have the documentation, so name the title of its page, and the
    command of pydoc that shows the source of the page.
    """
    if shared.json:
        document = {"error": masked(text), "kind": kind, "exit_code": code.value}
        try:
            output.print_json(document | ({"help": ours.help_page()} if ours else {}))
        except OSError:
            output.give_up_stdout()  # standard error has the error at least
        else:
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
    """Return the traceback of *error* from the first frame outside our code and frameworks.

    An error in the module of ``--app`` is shown from there; our own error is shown whole.
    """
    found = error.__traceback__
    while found is not None:
        if not found.tb_frame.f_code.co_filename.startswith((_OURS, *_FRAMEWORK)):
            return found
        found = found.tb_next
    return error.__traceback__
