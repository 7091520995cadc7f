"""The configuration, output and endpoint that all commands share."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from timeoutmgr import plugins
from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.errors import ConfigurationError, SchemaMissing

if TYPE_CHECKING:
    from timeoutmgr.contracts import Persistence, SharedDatabase, Transport
    from timeoutmgr.contracts.reports import Finding
    from timeoutmgr.deadletter.store import DeadLetterStore
    from timeoutmgr.endpoint.assembly import AssembledEndpoint
    from timeoutmgr.endpoint.configuration import EndpointConfiguration
    from timeoutmgr.endpoint.endpoint import Endpoint

DEFAULT_FILE = "timeoutmgr.toml"


@dataclass(kw_only=True)
class Shared:
    """The options that every command has."""

    config: Path | None = None
    app: str | None = None
    json: bool = False
    verbose: bool = False

    def show(
        self, document: Mapping[str, Any], for_people: Callable[[], None] | None = None
    ) -> None:
        """Print *document* as JSON on request, otherwise by *for_people* or as pairs."""
        if self.json:
            output.print_json(document)
        elif for_people is not None:
            for_people()
        else:
            output.print_pairs([*document.items()])

    def log_level(self, usual: int) -> int:
        """Return the lowest level of the log lines to show."""
        return logging.DEBUG if self.verbose else usual

    def configuration(self) -> "EndpointConfiguration":
        """Return the configuration of the app or the settings file."""
        if self.app is not None and self.config is not None:
            raise ConfigurationError(
                f"--app {self.app} and --config {self.config} are both given, and an app reads no "
                "settings file by itself; omit --config, or let the app call configuration_from"
            )
        if self.app is not None:
            return _from_app(self.app)
        from timeoutmgr.settings.file import configuration_from

        default = Path(DEFAULT_FILE)
        path = self.config if self.config is not None or not default.is_file() else default
        return configuration_from(path, os.environ)


@contextmanager
def opened(
    shared: Shared, *, with_store: bool = True, with_queues: bool = True
) -> Iterator["Endpoint"]:
    """Yield the endpoint, not started, after a check of the queues and the store that it needs.

    The command connects to no other part, so it works while other parts are unavailable.
    """
    from timeoutmgr.endpoint.endpoint import Endpoint

    config = shared.configuration()
    settings = config.settings()
    needed = [
        *([settings.transport] if with_queues else []),
        *([settings.persistence] if with_store else []),
    ]
    for part in needed:
        if part is not None:
            _require_file(part.database)
    endpoint = Endpoint(config)
    try:
        for part in needed:
            if part is not None:
                part.check()
        yield endpoint
    finally:
        endpoint.close()


def require_installed(part: "Transport | Persistence | DeadLetterStore") -> None:
    """Raise SchemaMissing if ``install`` is needed; create no missing file."""
    _require_file(part.database)
    part.check()


def _require_file(database: "SharedDatabase | None") -> None:
    # Connecting would create the file.
    if database is not None and database.path is not None and not database.path.exists():
        raise SchemaMissing(f"there is no file {database.path}; run `timeoutmgr install`")


def show_findings(shared: Shared, findings: "Sequence[Finding]", about: Mapping[str, Any]) -> Exit:
    """Show *findings* after *about*; return the exit code, FAILED if any finding fails."""
    from timeoutmgr.contracts.reports import Level

    failed = any(each.level is Level.FAIL for each in findings)
    document = {"healthy": not failed, "findings": [each.document() for each in findings]}

    def for_people() -> None:
        for each in findings:
            click.echo(output.plain(each.line()))

    shared.show({**about, **document}, for_people)
    return Exit.FAILED if failed else Exit.OK


@contextmanager
def assembled(shared: Shared) -> Iterator["AssembledEndpoint"]:
    """Yield the unconnected parts of the endpoint."""
    from timeoutmgr.endpoint.assembly import assemble

    parts = assemble(shared.configuration().settings())
    try:
        yield parts
    finally:
        parts.settings.transport.close()
        parts.close_storage()


def _made_by(found: object) -> object:
    """Return what the function *found* returns; *found* itself if it needs arguments."""
    import inspect

    if not callable(found):
        return found
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):
        return found  # a handler, say, or a type of C without a signature
    return found()


def _from_app(app: str) -> "EndpointConfiguration":
    from timeoutmgr.endpoint.configuration import EndpointConfiguration

    found: object = plugins.function(app, "--app")
    config = found if isinstance(found, EndpointConfiguration) else _made_by(found)
    if not isinstance(config, EndpointConfiguration):
        raise ConfigurationError(
            f"--app {app} is {type(config).__name__}; expected an EndpointConfiguration, or a "
            "function without arguments that returns one"
        )
    return config
