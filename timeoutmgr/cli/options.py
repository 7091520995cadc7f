"""Options, each with an environment variable, and the types of their values."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import partial, reduce, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from timeoutmgr.cli.shared import DEFAULT_FILE, Shared
from timeoutmgr.message.instants import parse_duration

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

ENVIRONMENT = "TIMEOUTMGR_CLI"
FILE: Final = click.Path(dir_okay=False, path_type=Path)
"""The type of an option for a file, which need not exist."""


def option(*names: str, **settings: Any) -> Callable[[Decorated], Decorated]:
    """Add an option; its help shows the twin ``TIMEOUTMGR_CLI_<COMMAND>_<OPTION>`` and the default.

    An empty default is shown only if *settings* say so.
    """
    shows = {"show_envvar": True, "show_default": settings.get("default") not in (None, "")}
    return click.option(*names, **{**shows, **settings})


def check_text(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
    """Return *given*. Raises BadParameter for a blank text, such as an empty shell variable."""
    if given is not None and not given.strip():
        raise click.BadParameter(f"{given!r:.80} is blank; give a text", ctx, param)
    return given


def bundled(
    name: str, kind: type[Any], *options: Callable[[Any], Any]
) -> Callable[[Decorated], Decorated]:
    """Add *options*; the command gets their values as the argument *name*, an instance of *kind*.

    *kind* is a dataclass; its fields have the names of the options' arguments. A field without an
    option keeps its default.
    """
    names = [field.name for field in fields(kind)]

    def add(function: Decorated) -> Decorated:
        @wraps(function)
        def called(*args: Any, **given: Any) -> object:
            values = {each: given.pop(each) for each in names if each in given}
            return function(*args, **given, **{name: kind(**values)})

        decorated: Callable[..., object] = called
        return added(*options)(decorated)  # type: ignore[return-value]  # it takes the options now

    return add


def added(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """Add *options* in this order."""

    def add(function: Decorated) -> Decorated:
        return reduce(lambda inner, each: each(inner), reversed(options), function)

    return add


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The extent of a command: all messages, a limit, or only a dry run."""

    everything: bool
    limit: int | None
    dry_run: bool

    def require_selection(self, is_narrowed: bool, narrowing: str) -> None:
        """Raise UsageError if the options select nothing, or twice; *narrowing* names them."""
        if self.everything and is_narrowed:
            raise click.UsageError(f"--all and a selection ({narrowing}) exclude each other")
        if not (self.everything or is_narrowed or self.limit or self.dry_run):
            raise click.UsageError(
                f"select messages: --all, {narrowing} or --limit; preview by --dry-run"
            )


def extent(what: str) -> Callable[[Decorated], Decorated]:
    """Add ``--all``, ``--limit`` and ``--dry-run``; *what* is the help text of --all."""
    return bundled(
        "extent",
        Extent,
        option("--all", "everything", is_flag=True, help=what),
        limit("Maximum number of messages, the oldest first."),
        option("--dry-run", is_flag=True, help="Print the result without changing anything."),
    )


def limit(help: str, **settings: Any) -> Callable[[Decorated], Decorated]:
    """Return the option ``--limit``, a number from 1; no queue holds more than ``sys.maxsize``."""
    settings["callback"] = lambda _context, _parameter, given: given and min(given, sys.maxsize)
    return option("--limit", type=click.IntRange(min=1), help=help, **settings)


def every(help: str) -> Callable[[Decorated], Decorated]:
    """Return the option ``--every``, an interval."""
    kind = Duration(is_interval=True)
    return option("--every", type=kind, default="2s", help=help)


show_body: Final = option(
    "--body", "with_body", is_flag=True, help="Show the body as text, or as base64 if it is binary."
)
export_file: Final = option(
    "--output", "path", type=FILE, help="File to write. Without it, standard output."
)


def with_examples(text: str) -> str:
    """Return the help *text*, keeping the layout of its examples and tables."""
    found = inspect.cleandoc(text).replace("\n\\b\n", "\n\b\n")
    return found.replace("\nExamples:\n", "\n\b\nExamples:\n")


class Command(click.Command):
    """A command whose help ends with examples; *within* is its group, if any.

    Its function gets the options that every command has as its first argument, a Shared.
    """

    def __init__(
        self,
        name: str | None,
        *,
        callback: Callable[..., Any],
        params: Sequence[click.Parameter] = (),
        help: str = "",
        within: str = "",
        **settings: Any,
    ) -> None:
        super().__init__(
            name,
            help=with_examples(help),
            callback=click.pass_obj(callback),
            params=[*params, *common(environment=False)],
            **settings,
        )
        for param in self.params:
            # Name the variable after the option; click would use Python's name of the argument.
            if isinstance(param, click.Option) and param.allow_from_autoenv:
                group = f"{within}_" if within else ""
                twin = f"{ENVIRONMENT}_{group}{name}_{param.opts[0].lstrip('-')}"
                param.envvar = twin.replace("-", "_").upper()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse *args*; the error for an extra argument names --id if the command has it.

        Some commands take an id as an argument, commands with filters as an option.
        """
        ctx.allow_extra_args = True
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            takes_id = any("--id" in param.opts for param in self.params)
            hint = f"; give an id as --id {extra[0]}" if takes_id else ""
            raise click.UsageError(f"unexpected argument {extra[0]!r:.80}{hint}", ctx)
        return extra


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A duration in the forms that settings also allow; never negative.

    With *is_interval* it is over 0, otherwise a command would be busy, and at most a year.
    """

    name = "duration"

    def __init__(self, *, is_interval: bool = False) -> None:
        self._is_interval = is_interval

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Return the duration in *value*."""
        try:
            found = value if isinstance(value, timedelta) else parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if found < timedelta(0):
            self.fail(f"a duration is never negative, got {value!r}; give 0 or more", param, ctx)
        if self._is_interval and not timedelta(0) < found <= timedelta(days=366):
            self.fail(f"an interval is over 0, up to a year, got {value!r}; such as 2s", param, ctx)
        return found


class Instant(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A time in ISO 8601 with its zone."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return the time in *value*."""
        if not isinstance(value, str):
            return datetime.fromisoformat(value.isoformat())
        try:
            at = datetime.fromisoformat(value.strip())
        except ValueError:
            self.fail(
                f"{value!r} is not a time; expected ISO 8601 such as 2030-01-31T09:00:00Z",
                param,
                ctx,
            )
        if at.tzinfo is None:
            self.fail(
                f"{value!r} has no time zone; add Z for UTC, or an offset such as +01:00",
                param,
                ctx,
            )
        return at


class Pair(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A name and its value as ``NAME=VALUE``."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return name and value."""
        if isinstance(value, tuple):
            return value[0], value[1]
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not a name with its value; expected NAME=VALUE", param, ctx)
        return name, text


def by_name(flag: str, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return *pairs*, the values of *flag*. Raises UsageError for a name that is given twice."""
    names = [name for name, _value in pairs]
    again = next((name for name in names if names.count(name) > 1), None)
    if again is not None:
        raise click.UsageError(
            f"{flag} gives {again!r} twice, and a single value would count; give it once in each "
            "command"
        )
    return dict(pairs)


def _either(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    other = "at" if param.name == "delay" else "delay"
    if value is not None and ctx.params.get(other) is not None:
        raise click.UsageError("--delay and --at exclude each other; give only one")
    return value


delay_and_at: Final = added(
    option(
        "--delay",
        type=Duration(),
        callback=_either,
        help="Delay until the due time, in seconds or with units: 90, 2m, 1h30m, PT2M.",
    ),
    option(
        "--at",
        type=Instant(),
        callback=_either,
        help="Due time, in ISO 8601 with a zone: 2030-01-31T09:00Z.",
    ),
)
"""Add ``--delay`` and ``--at``, which exclude each other."""


def common(*, environment: bool) -> list[click.Parameter]:
    """Return the options that every command has; with *environment*, those of the group."""
    made = partial(
        click.Option,
        expose_value=False,
        is_eager=True,  # these options decide how errors of other options are printed
        callback=_remember,
        show_envvar=environment,
        allow_from_autoenv=environment,
    )
    return [
        made(
            ["--config"],
            type=FILE,
            help=f"Settings file. Without it, ./{DEFAULT_FILE} if that file exists.",
        ),
        made(
            ["--app"],
            metavar="MODULE:ATTRIBUTE",
            help="An EndpointConfiguration, or a function that returns one.",
        ),
        made(["--json"], is_flag=True, help="Print one JSON document."),
        made(["--verbose"], is_flag=True, help="Show debug log lines."),
    ]


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    # The option may stand before the command or after it.
    if value and param.name:
        setattr(ctx.ensure_object(Shared), param.name, value)
