"""Options, windows, progress and reports of the commands of ``timeoutmgr migrate``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click
from click.core import ParameterSource

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Duration, Instant, Pair, added, by_name, option
from timeoutmgr.cli.shared import Shared
from timeoutmgr.cli.written_files import written_whole
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import duration_micros, to_micros
from timeoutmgr.message.redaction import redact

if TYPE_CHECKING:
    from timeoutmgr.migration import Batch, MigrationLedger, Preview, Terms, Window
    from timeoutmgr.migration.audit import MigrationAudit
    from timeoutmgr.migration.movers import Movers
    from timeoutmgr.migration.places import MigrationContext, MigrationRequest
    from timeoutmgr.migration.ports import StepInputs
    from timeoutmgr.migration.run import AnyParticipants

_PLACE = (
    "a database's URL, a settings file, native, or a broker's URL. Default: the endpoint's own "
    "store."
)
_NAMES = "Names of the delay levels: timeoutmgr, nservicebus-v2, nservicebus-v1 or celery."


places: Final = added(
    option("--from", "source", help=f"Source: {_PLACE}"),
    option("--to", "target", help=f"Target: {_PLACE}"),
    option("--from-names", default="timeoutmgr", help=_NAMES),
    option("--to-names", default="timeoutmgr", help=_NAMES),
    option("--names-prefix", default="", help="Prefix of kombu's levels."),
    option("--from-prefix", help="Prefix of the source's tables."),
    option("--to-prefix", help="Prefix of the target's tables."),
    option("--from-schema", help="Schema of the source's tables."),
    option("--to-schema", help="Schema of the target's tables."),
    option(
        "--layout",
        type=click.Choice(["nservicebus", "msmq"]),
        help="Layout of another product's timeout table, or of its export, as the source.",
    ),
    option("--table", help="Name of that table. Default: TimeoutData, or timeouts."),
    option(
        "--from-file",
        type=click.Path(dir_okay=False, exists=True, path_type=Path),
        help="An export of such a table, CSV or Parquet.",
    ),
    option("--ledger", help="URL of a store for the ledger, if neither end is a store."),
    option("--endpoint", "endpoints", multiple=True, help="Endpoint to migrate; may be repeated."),
    option(
        "--all-senders",
        is_flag=True,
        help="From delay levels: move messages that other endpoints sent as well.",
    ),
    option(
        "--rename",
        "renames",
        type=Pair(),
        multiple=True,
        metavar="OLD=NEW",
        help="Destination with another name here; may be given many times.",
    ),
)
"""Add the options for source and target."""


window: Final = added(
    option("--cutoff", type=Instant(), help="Earliest due time to move."),
    option("--until", type=Instant(), help="End of the due times to move, exclusive."),
    option(
        "--safety-window",
        type=Duration(),
        default="15m",
        help="Timeouts due within this time stay, and the source delivers them.",
    ),
    option(
        "--overdue",
        is_flag=True,
        help="Also move overdue timeouts, from a source without a running poller. "
        "Overdue timeouts of an export always move.",
    ),
    option(
        "--batch",
        type=click.IntRange(min=1, max=50_000),
        default=5_000,
        help="Number of timeouts in a batch: a batch is in memory, and a crash leaves it open.",
    ),
)
"""Add the options for the window and the batch size."""


@dataclass(frozen=True, slots=True)
class OpenMigration:
    """One endpoint's opened migration."""

    parts: AnyParticipants
    terms: Terms
    audit: MigrationAudit


def refuse_passwords(context: click.Context) -> None:
    """Raise UsageError for a typed URL with a password: every user sees the process list.

    The variables of the options may contain passwords.
    """
    for option_ in context.command.params:
        name, value = option_.name or "", context.params.get(option_.name or "")
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if typed and isinstance(value, str) and "://" in value and redact(value) != value:
            flag = option_.opts[0]
            variable = f"{context.auto_envvar_prefix}_{flag.strip('-').replace('-', '_').upper()}"
            raise click.UsageError(
                f"{flag} {redact(value)} has a password, and other users of this host can read a "
                f"command line; put the URL into {variable}, or name a settings file"
            )


def asked_for(given: Mapping[str, Any]) -> MigrationRequest:
    """Return the request of the options; raise UsageError for a typed password."""
    from timeoutmgr.migration.places import LocationSpec, MigrationRequest

    def location(end: str, which: str) -> LocationSpec:
        names = given[f"{which}_names"]
        return LocationSpec(
            url=given[end],
            names=names,
            names_prefix=given["names_prefix"] if names == "celery" else "",
            prefix=given[f"{which}_prefix"],
            schema=given[f"{which}_schema"],
        )

    refuse_passwords(click.get_current_context())
    return MigrationRequest(
        source=location("source", "from"),
        target=location("target", "to"),
        layout=given["layout"],
        table=given["table"],
        file=given["from_file"],
        ledger=given["ledger"],
        window=window_of(given),
        batch=given.get("batch") or 5_000,
        renames=by_name("--rename", given["renames"]),
        all_senders=given["all_senders"],
    )


def window_of(given: Mapping[str, Any]) -> Window:
    """Return the window of the options; for an export, it includes overdue timeouts."""
    from timeoutmgr.migration import Window

    safety: timedelta = given.get("safety_window") or timedelta(0)
    return Window(
        cutoff=to_micros(given["cutoff"]) if given.get("cutoff") else None,
        until=to_micros(given["until"]) if given.get("until") else None,
        safety=duration_micros(safety),
        overdue=bool(given.get("overdue")) or given.get("from_file") is not None,
    )


@contextmanager
def sites(
    shared: Shared, asked: MigrationRequest, endpoints: Sequence[str]
) -> Iterator[list[OpenMigration]]:
    """Open each endpoint's migration; without *endpoints*, the configured endpoint's."""
    opened: list[OpenMigration] = []
    with _made(shared, asked, endpoints) as made:
        try:
            for site in made:
                parts = site.parts()
                opened.append(OpenMigration(parts, site.terms(parts), site.audit))
            yield opened
        finally:
            for one in opened:
                one.parts.close()


@contextmanager
def ledgers(
    shared: Shared, asked: MigrationRequest, endpoints: Sequence[str]
) -> Iterator[list[MigrationLedger]]:
    """Open only each endpoint's ledger."""
    with _made(shared, asked, endpoints) as made:
        yield [site.ledger() for site in made]


@contextmanager
def _made(
    shared: Shared, asked: MigrationRequest, endpoints: Sequence[str]
) -> Iterator[list[MigrationContext]]:
    from timeoutmgr.migration.places import MigrationContext

    settings = shared.configuration().settings()
    made = [MigrationContext(settings, asked, name) for name in endpoints or (settings.name,)]
    try:
        yield made
    finally:
        for site in made:
            site.close()
        settings.transport.close()
        if settings.persistence is not None:
            settings.persistence.close()


@dataclass(frozen=True, slots=True)
class PlacesOpener:
    """Opens the places of one endpoint's migration in another process, with the same options."""

    shared: Shared
    asked: MigrationRequest
    endpoint: str

    @contextmanager
    def __call__(self) -> Iterator[StepInputs]:
        """Yield the participants; the source was checked to be a store."""
        with sites(self.shared, self.asked, [self.endpoint]) as [one]:
            yield cast("StepInputs", one.parts)


def check_processes(asked: MigrationRequest, processes: int) -> None:
    """Raise ConfigurationError for several processes if only one can keep the order."""
    is_store = not asked.source.is_levels and asked.layout is None and asked.file is None
    if processes > 1 and not is_store:
        raise ConfigurationError(
            f"--processes {processes}: delay levels, and tables and exports of other products, are "
            "moved by one process, in their order; leave --processes out"
        )


def movers_of(
    shared: Shared, asked: MigrationRequest, endpoint: str, processes: int
) -> Movers | None:
    """Return the processes that move the batches of *endpoint*'s run; None for only this one."""
    from timeoutmgr.migration.movers import Movers

    if processes == 1:
        return None
    return Movers(count=processes, opener=PlacesOpener(shared, asked, endpoint))


@contextmanager
def on_the_way(shared: Shared, opened: OpenMigration) -> Iterator[Callable[[Batch], None]]:
    """Yield the function to call after each batch; on a terminal, it draws a progress bar."""
    if shared.json or not sys.stderr.isatty():
        yield lambda _batch: None
        return
    from rich import progress as bars
    from rich.console import Console

    name, count = bars.TextColumn("{task.description}"), bars.MofNCompleteColumn()
    columns = (name, bars.BarColumn(), count, bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(output.plain(opened.terms.endpoint), total=None)

        def on_batch(batch: Batch) -> None:
            run = opened.parts.ledger.open_run()
            if progress.tasks[0].total is None and run is not None:
                total = opened.parts.ledger.totals(run.id)["planned"]
                progress.update(task, total=total)
            progress.advance(task, batch.collected)

        yield on_batch


def preview_document(found: Preview) -> dict[str, Any]:
    """Return a preview as plain values."""
    return {
        **found.terms.document(),
        "count": found.survey.count,
        "left": found.survey.left,
        "earliest": output.shown_time(found.survey.earliest),
        "latest": output.shown_time(found.survey.latest),
        "destinations": dict(found.survey.destinations),
        "problems": [str(problem) for problem in found.problems],
        "warnings": list(found.warnings),
    }


def print_preview(documents: Sequence[dict[str, Any]]) -> None:
    """Print previews."""
    for each in documents:
        output.print_pairs(
            [
                ("endpoint", each["endpoint"]),
                ("from", each["source"]),
                ("to", each["target"]),
                ("timeouts", each["count"]),
                ("stay", each["left"]),
                ("nearest", each["earliest"]),
                ("farthest", each["latest"]),
            ]
        )
        if each["destinations"]:
            click.echo()
            output.print_table(["destination", "timeouts"], sorted(each["destinations"].items()))
        for warning in each["warnings"]:
            output.print_error(f"warning: {warning}")
        for problem in each["problems"]:
            output.print_error(f"problem: {output.plain(problem)}")


def print_reports(documents: Sequence[dict[str, Any]]) -> None:
    """Print the reports of runs."""
    if not documents:
        click.echo("no run")
        return
    for number, each in enumerate(documents):
        if number:
            click.echo()
        output.print_pairs(
            [
                ("run", each["run"]),
                ("state", each["state"]),
                ("endpoint", each["endpoint"]),
                ("from", each["source"]),
                ("to", each["target"]),
                ("batches", f"{each['batches_done']} of {each['batches']}"),
                ("planned", each["planned"]),
                ("taken", each["taken"]),
                ("arrived", each["new"]),
                ("known there", each["known"]),
                ("stayed", each["returned"]),
                ("perhaps twice", each["repeated"]),
                ("verified", "yes" if each["verified"] else "no"),
            ]
        )


def save_report(path: Path, documents: Sequence[dict[str, Any]]) -> bool:
    """Save the reports of runs in *path*; return whether that worked, or print the error."""
    try:
        with written_whole(path) as file:
            file.write(json.dumps({"runs": documents}, indent=2) + "\n")
    except ConfigurationError as error:
        output.print_error(
            f"error: the timeouts were moved, but --report {error}; the output has the report, and "
            "`timeoutmgr migrate status` too"
        )
        return False
    return True
