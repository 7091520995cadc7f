"""The pages of commands and settings cannot go stale: a test generates and compares both."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.commands import COMMANDS
from timeoutmgr.cli.exits import MEANINGS
from timeoutmgr.cli.main import cli
from timeoutmgr.deadletter import DeadLetterQueues
from timeoutmgr.native import NativeDelayedDelivery
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.settings import schema as keys
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.sql import SqlTransport

DOCS = Path(__file__).parent.parent.parent / "docs" / "reference"
TABLES: list[tuple[str, str, Any]] = [
    ("timeout-manager", "timeout-manager", TimeoutManager),
    ("dead-letter-queues", "dead-letter-queues", DeadLetterQueues),
    ("native-delayed-delivery", "native-delayed-delivery", NativeDelayedDelivery),
    *((name, name, part) for name, part in keys.BUILT.items()),
    (keys.TRANSPORT_OPTIONS, "transport_options, SQL queue", SqlTransport),
    (keys.TRANSPORT_OPTIONS, "transport_options, brokers", KombuTransport),
    (keys.PERSISTENCE_OPTIONS, "persistence_options", SqlPersistence),
]
ROW = re.compile(
    r"^\| `(?P<key>[^`]+)` \| `(?P<name>[^`]+)` \| (?P<default>.+) \| (?P<text>.+) \|$"
)


PAGES = {
    "cli-endpoint.md": ("Commands of an endpoint", "run install uninstall status doctor web top"),
    "cli-timeouts.md": (
        "Commands for timeouts",
        "send list show cancel cancel-saga reschedule reroute send-now retry",
    ),
    "cli-changes.md": ("Commands for many timeouts", "change runs pause resume restored audit"),
    "cli-recurring.md": ("Commands for recurring messages", "recurring"),
    "cli-errors.md": ("Commands for the error queue", "errors"),
    "cli-dead-letters.md": ("Commands for dead letters and journals", "deadletters journal"),
    "cli-migrate.md": ("Commands of a migration", "migrate"),
    "cli-pipeline.md": ("Commands of the data pipeline", "pipeline"),
}
"""The pages of commands: title, and the commands on the page."""
COMPLETION = (
    *("## Completion in the shell", ""),
    "With this line in `~/.bashrc`, bash completes commands and options:",
    *("", "```sh", 'eval "$(_TIMEOUTMGR_COMPLETE=bash_source timeoutmgr)"', "```", ""),
    "For zsh, use `zsh_source` in `~/.zshrc`; for fish, write the output of `fish_source` to",
    "`~/.config/fish/completions/timeoutmgr.fish`.",
    "",
)
MADE = "`tests/cli/test_docs.py` makes this page from the commands, and fails when it is stale."


@pytest.mark.parametrize("name", ["cli.md", *PAGES])
def test_the_command_reference_matches_the_help_of_the_commands(name: str) -> None:
    path = DOCS / name
    now = "\n".join(_overview() if name == "cli.md" else _page(*PAGES[name])) + "\n"

    if os.environ.get("TIMEOUTMGR_APPROVE"):
        path.write_text(now)

    assert path.read_text() == now, "if this is meant: TIMEOUTMGR_APPROVE=1"


def test_a_needed_option_is_called_needed_once() -> None:
    twice = [path.name for path in DOCS.glob("cli*.md") if "Needed. Needed." in path.read_text()]

    assert twice == []


def test_each_command_is_on_a_page() -> None:
    assert sorted(COMMANDS) == sorted(" ".join(names for _, names in PAGES.values()).split())


def test_the_page_of_settings_has_every_key_with_its_variable_and_default() -> None:
    documented = [
        (match["key"], match["name"], match["default"])
        for page in sorted(DOCS.glob("configuration*.md"))
        for match in map(ROW.match, page.read_text().splitlines())
        if match
    ]

    expected = [row for row in _top()]
    for table, _title, part in TABLES:
        expected += [
            (f"{table}.{key}", keys.environment_name(table, key), _shown(parameter.default))
            for key, parameter in keys.parameters(part).items()
        ]
    defaults = {key: default for key, _name, default in documented}
    # The page describes a default in words if it depends on the machine or on other settings.
    expected = [
        (key, name, defaults.get(key, "") if default == "*" else default)
        for key, name, default in expected
    ]
    assert sorted(set(documented)) == sorted(set(expected))


def _top() -> Iterator[tuple[str, str, str]]:
    from timeoutmgr import EndpointConfiguration

    made = EndpointConfiguration("a")
    for key in keys.TOP:
        plain = key in ("error_queue", "install", "check_destinations", "critical_error_action")
        default = _shown(getattr(made, key)) if plain else "*"
        yield key, keys.environment_name(key), default


def _shown(value: object) -> str:
    if value is None or value == ():
        return "-"
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
            if seconds and seconds % size == 0:
                return f"`{int(seconds // size)}{unit}`"
        return f"`{seconds:g}s`"
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def _overview() -> Iterator[str]:
    yield from ("# Command line", "", MADE, "")
    yield from _command(cli, "timeoutmgr")
    for page, (title, names) in PAGES.items():
        yield from (f"## {title}", "", "| Command | Effect |", "|---|---|")
        for name, command in _commands(names):
            text = cleandoc(command.help or "").replace("\b\n", "")
            effect = " ".join(text.partition("\n\n")[0].split())
            yield f"| [`{name}`]({page}#{name.replace(' ', '-')}) | {effect} |"
        yield ""
    yield from COMPLETION
    yield from ("## Exit codes", "")
    yield from (f"* {code.value}: {meaning}" for code, meaning in MEANINGS.items())


def _page(title: str, names: str) -> Iterator[str]:
    yield from (f"# {title}", "", MADE, "")
    for name, command in _commands(names):
        yield from _command(command, name)
    yield "The [command line](cli.md) has the options of all commands, and the exit codes."


def _commands(names: str) -> Iterator[tuple[str, click.Command]]:
    for name in names.split():
        command = COMMANDS[name]
        yield f"timeoutmgr {name}", command
        if isinstance(command, click.Group):
            for inner, one in command.commands.items():
                yield f"timeoutmgr {name} {inner}", one


def _command(command: click.Command, name: str) -> Iterator[str]:
    text = cleandoc(command.help or "").replace("\b\n", "")
    prose, _, examples = text.partition("Examples:\n")
    context = click.Context(command)
    arguments = [
        param.make_metavar(context) for param in command.params if isinstance(param, click.Argument)
    ]
    arguments += ["COMMAND"] if isinstance(command, click.Group) else []
    yield f"## {name}"
    yield ""
    yield f"    {' '.join([name, '[OPTIONS]', *arguments])}"
    yield ""
    yield prose.strip()
    yield ""
    yield "```sh"
    yield from (line.strip() for line in examples.strip().splitlines())
    yield "```"
    yield ""
    own = {param.name for param in cli.params} if command is not cli else set()
    options = [
        param
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden and param.name not in own
    ]
    for option in options:
        twin = option.envvar or f"TIMEOUTMGR_CLI_{option.opts[0][2:].upper()}"
        has_twin = option.allow_from_autoenv and option.name != "version"
        shown = f" (`{twin}`)" if has_twin else ""
        value = "" if option.is_flag else f" {option.make_metavar(context)}"
        default = f" Default: {option.default}." if option.show_default else ""
        needed = " Needed." if option.required else ""
        yield f"* `{option.opts[0]}{value}`{shown}: {option.help}{needed}{default}"
    if options:
        yield ""
