"""``timeoutmgr pipeline erase``: erase a person's timeouts, with a certificate."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import FILE, Command, option
from timeoutmgr.cli.pipeline.shared import WITHIN, of_job, of_store, progress, store_job
from timeoutmgr.cli.shared import Shared, assembled
from timeoutmgr.cli.written_files import Unwritten, export_to
from timeoutmgr.pipeline.lake_options import EraseOptions


@click.command(cls=Command, within=WITHIN)
@of_job(EraseOptions)
@option(
    "--certificate",
    type=FILE,
    help="New file for the certificate, as JSON; not created if nothing was found.",
)
@option(
    "--copies",
    "with_copies",
    is_flag=True,
    help="Also erase error copies, dead letters and the node's journal of the settings' endpoint.",
)
@of_store
def erase(
    shared: Shared,
    /,
    store: str | None,
    certificate: Path | None,
    with_copies: bool,
    **options: Any,
) -> Exit:
    """Erase all timeouts of a person from a store and a lake, and print a certificate.

    A timeout is erased if any option selects it. Rows are removed from pending timeouts, labels,
    history, the history table and the table `pending`, with older files of both; the id keeps a
    tombstone without content. The certificate has counts and digests, and lists the places that
    were not reached. Copies are found by saga id, header, id and destination queue. The exit code
    is 3 if nothing was found, 1 if something is left. It needs no Spark.

    Examples:
      timeoutmgr pipeline erase --saga-ids c-17,c-18 --lake delta:s3://lake/history --dry-run
      timeoutmgr pipeline erase --header Customer=17 --copies --certificate erased-17.json
    """
    from timeoutmgr.cli.pipeline.person_copies import PersonCopies
    from timeoutmgr.clock import SystemClock
    from timeoutmgr.pipeline.jobs.erase import Certificate
    from timeoutmgr.pipeline.jobs.erase import erase as run

    given = store_job(shared, EraseOptions, options, store)
    if certificate is not None and (certificate.is_file() or not certificate.exists()):
        with export_to(certificate, "--certificate"):
            pass  # test that the file can be created; an empty file would block a later run

    def show(found: Certificate) -> None:
        document = found.document()
        shared.show(document)
        output.flush()

    def deliver(found: Certificate) -> None:
        if certificate is None:
            show(found)
        elif found.has_found:
            _write(certificate, found.document())

    with assembled(shared) if with_copies else nullcontext() as parts:
        copies = None if parts is None else PersonCopies(parts, given)
        clock, says = SystemClock(), progress(shared)
        found = run(given, clock=clock, progress=says, copies=copies, deliver=deliver)
    if certificate is not None:
        show(found)
    if found.left and not found.dry_run:
        return Exit.FAILED
    return Exit.OK if found.has_found else Exit.NOT_FOUND


def _write(path: Path, document: Mapping[str, Any]) -> None:
    try:
        with export_to(path, "--certificate") as file:
            file.write(document)
    except Unwritten as error:
        raise Unwritten(
            f"{error.message.partition(', and')[0]}, and the erasure is done; make room, and "
            "run it again for its certificate"
        ) from None
