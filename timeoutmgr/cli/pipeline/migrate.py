"""``timeoutmgr pipeline migrate``: pending timeouts to another place, by many tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.migrate.shared import (
    preview_document,
    print_preview,
    print_reports,
    window,
    window_of,
)
from timeoutmgr.cli.options import Command, common, option
from timeoutmgr.cli.pipeline.shared import WITHIN, on_spark, progress, spark, store_name
from timeoutmgr.cli.shared import Shared
from timeoutmgr.errors import ConfigurationError

if TYPE_CHECKING:
    from timeoutmgr.pipeline.jobs.migrate import Ends

_PLACE = "A settings file, or NAME with the URL in TIMEOUTMGR_STORE_NAME."
_OWN = "Without it, the endpoint's own store."
_NAMES = "What the delay levels are called: timeoutmgr, nservicebus-v2, nservicebus-v1 or celery."


@click.command(cls=Command, within=WITHIN)
@option("--from", "source", help=f"Where from. {_PLACE} {_OWN}")
@option("--to", "target", help=f"Where to. {_PLACE} native: delay levels. {_OWN}")
@option("--to-names", default="timeoutmgr", show_default=True, help=_NAMES)
@option("--names-prefix", default="", help="The prefix that kombu gives its levels.")
@option("--from-prefix", help="How the tables of a NAME begin.")
@option("--to-prefix", help="How the tables of a NAME begin.")
@option("--from-schema", help="The schema of the tables of a NAME.")
@option("--to-schema", help="The schema of the tables of a NAME.")
@option("--endpoint", "endpoints", multiple=True, help="Whose; many times.")
@window
@option(
    "--tasks",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="How many move batches side by side, as far as Spark has room.",
)
@option("--dry-run", is_flag=True, help="Only show the timeouts to move, and the problems.")
@option("--abort", "aborts", is_flag=True, help="Give the open run up; needs no Spark.")
@on_spark
@common(environment=False)
@click.pass_obj
def migrate(
    shared: Shared,
    /,
    endpoints: Sequence[str],
    tasks: int,
    dry_run: bool,
    aborts: bool,
    **options: Any,
) -> Exit:
    """Move pending timeouts from a store to another, or into native delay levels.

    The runs are shared with `timeoutmgr migrate`: each command resumes, or aborts, a run that the
    other began, on the same terms, and `timeoutmgr migrate status` shows both. Any problem of any
    endpoint, and nothing is moved (exit code 4); with --dry-run it is exit code 1. Interrupted, it
    goes on with the same command. With --abort and no open run the exit code is 3.

    Examples:
      timeoutmgr pipeline migrate --to native --dry-run
      timeoutmgr pipeline migrate --to new.toml --batch 20000 --tasks 16 --master spark://spark:7077
    """
    if dry_run and aborts:
        raise ConfigurationError("--dry-run changes nothing, and --abort does; give one of them")
    ends = _ends(shared, options)
    if dry_run:
        return _preview(shared, ends, endpoints)
    if aborts:
        return _abort(shared, ends, endpoints)
    from timeoutmgr.pipeline.jobs.migrate import MigrateOptions
    from timeoutmgr.pipeline.jobs.migrate import migrate as run

    given = MigrateOptions(ends=ends, endpoints=tuple(endpoints), tasks=tasks)
    with spark(shared, options) as session:
        reports = run(session, given, progress=progress(shared))
    made = [report.document() for report in reports]
    shared.show({"runs": made}, lambda: print_reports(made))
    return Exit.OK


def _preview(shared: Shared, ends: "Ends", endpoints: Sequence[str]) -> Exit:
    from timeoutmgr.migration import preview
    from timeoutmgr.pipeline.jobs.migrate import opened

    with opened(ends, endpoints) as found:
        made = [preview_document(preview(one.parts, one.terms)) for one in found]
    shared.show({"endpoints": made}, lambda: print_preview(made))
    return Exit.FAILED if any(each["problems"] for each in made) else Exit.OK


def _abort(shared: Shared, ends: "Ends", endpoints: Sequence[str]) -> Exit:
    from timeoutmgr.migration.run import give_up
    from timeoutmgr.pipeline.jobs.migrate import opened

    with opened(ends, endpoints) as found:
        reports = []
        for one in found:
            with one.audit.kept("migrate-abort", one.terms) as work:
                reports.append(given_up := give_up(one.parts))
                work.changed = 0 if given_up is None else given_up.returned
    made = [report.document() for report in reports if report is not None]
    shared.show({"runs": made}, lambda: print_reports(made))
    return Exit.OK if made else Exit.NOT_FOUND


def _ends(shared: Shared, options: dict[str, Any]) -> "Ends":
    from timeoutmgr.migration.places import LocationSpec
    from timeoutmgr.pipeline.jobs.migrate import Ends

    if shared.app is not None:
        raise ConfigurationError(
            "Spark's workers cannot open the settings of an --app; give --config with a file"
        )
    names = options["to_names"]
    return Ends(
        settings=store_name(shared, None),
        source=LocationSpec(
            url=_absolute(options["source"]),
            prefix=options["from_prefix"],
            schema=options["from_schema"],
        ),
        target=LocationSpec(
            url=_absolute(options["target"]),
            names=names,
            names_prefix=options["names_prefix"] if names == "celery" else "",
            prefix=options["to_prefix"],
            schema=options["to_schema"],
        ),
        window=window_of(options),
        batch=options["batch"],
    )


def _absolute(name: str | None) -> str | None:
    """Return *name* as workers can open it in another folder."""
    if name is None or not name.endswith(".toml"):
        return name
    return str(Path(name).resolve())
