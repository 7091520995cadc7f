"""List, show, delete and export stored copies, both dead letters and journal entries."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.deadletters.selection import NARROWING, CopySelection, opened_queue, progress_of
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Extent
from timeoutmgr.cli.shared import Shared
from timeoutmgr.cli.written_files import export_to, show_exported

if TYPE_CHECKING:
    from timeoutmgr.deadletter.queues import StoredCopyGroup
    from timeoutmgr.deadletter.stored_copy import StoredCopy


def list_copies(shared: Shared, selection: CopySelection, limit: int, *, only_groups: bool) -> None:
    """Print the selected copies after their groups by message class and reason."""
    with opened_queue(shared, selection) as lent:
        groups = selection.groups(lent.queue)
        found = [] if only_groups else selection.copies(lent.queue, limit)
        copies = [copy_document(copy) for copy in found]
    total = sum(group.count for group in groups)
    document: dict[str, Any] = {
        "total": total,
        "groups": [_group_document(group) for group in groups],
    }
    if not only_groups:
        document["letters"] = copies
    cut = not only_groups and len(copies) < total
    shared.show(document, lambda: _print_list(document["groups"], copies, total, cut=cut))


def show_copies(shared: Shared, selection: CopySelection, *, with_body: bool) -> Exit:
    """Print the selected copies in full; the body only with *with_body*."""
    with opened_queue(shared, selection) as lent:
        found = list(selection.copies(lent.queue, None))
    documents = [_whole_document(copy, with_body=with_body) for copy in found]

    def for_people() -> None:
        for document in documents:
            given = document.pop("headers")
            output.print_pairs(list(document.items()))
            for name, value in given.items():
                click.echo(f"  {output.plain(name)}: {output.plain(value)}")
        if not documents:
            click.echo(f"no message {output.plain(', '.join(selection.ids))} is there")

    shared.show({"letters": documents}, for_people)
    return Exit.OK if found else Exit.NOT_FOUND


def delete_copies(shared: Shared, selection: CopySelection, extent: Extent) -> Exit:
    """Delete the selected copies, or count them in a dry run."""
    extent.require_selection(selection.is_narrowed, NARROWING)
    deleted = total = 0
    with opened_queue(shared, selection) as lent:
        count = selection.count(lent.queue)
        with progress_of(shared, "deleting", count) as step:
            for copy in selection.copies(lent.queue, extent.limit):
                total += 1
                if not extent.dry_run:
                    deleted += lent.queue.delete([copy])
                step()
    document = {"chosen": total, "deleted": deleted, "dry_run": extent.dry_run}
    text = f"{total} would be deleted" if extent.dry_run else f"{deleted} deleted"
    shared.show(document, lambda: click.echo(text))
    return Exit.OK if total else Exit.NOT_FOUND


def export_copies(
    shared: Shared, selection: CopySelection, limit: int | None, path: Path | None
) -> Exit:
    """Write the selected copies as JSON lines to *path*, or to standard output."""
    count = 0
    with opened_queue(shared, selection) as lent, export_to(path) as target:
        for copy in selection.copies(lent.queue, limit):
            target.write(copy_document(copy, whole=True))
            count += 1
    return show_exported(shared, count, path)


def copy_document(copy: "StoredCopy", *, whole: bool = False) -> dict[str, Any]:
    """Return *copy* for JSON; with *whole*, including headers and body."""
    document: dict[str, Any] = {
        "message_id": copy.message.id,
        "class": copy.class_name,
        "class_number": f"{copy.message_class:#06x}",
        "destination": copy.destination,
        "source": copy.source or None,
        "since": output.shown_time(copy.kept),
        "sent": output.shown_time(copy.sent),
        "transactional": copy.transactional,
        "received_late": copy.late,
        "attempts": copy.attempts,
        "hops": copy.hops,
        "reason": copy.reason,
        "channel": copy.channel,
        "bytes": len(copy.message.body),
    }
    if whole:
        document |= {
            "content_type": copy.message.content_type,
            "headers": dict(copy.message.headers),
            "body_base64": base64.b64encode(copy.message.body).decode(),
        }
    return document


def _whole_document(copy: "StoredCopy", *, with_body: bool) -> dict[str, Any]:
    document = copy_document(copy, whole=True)
    del document["body_base64"]
    return document | output.body_document(copy.message.body) if with_body else document


def _group_document(group: "StoredCopyGroup") -> dict[str, Any]:
    from timeoutmgr.deadletter.stored_copy import class_name

    return {
        "class": class_name(group.message_class),
        "reason": group.reason,
        "count": group.count,
        "oldest": output.shown_time(group.oldest),
        "newest": output.shown_time(group.newest),
    }


def _print_list(
    groups: Sequence[dict[str, Any]], copies: Sequence[dict[str, Any]], total: int, *, cut: bool
) -> None:
    if groups:
        rows = [group | {"reason": group["reason"][:100]} for group in groups]
        output.print_documents(("count", "class", "oldest", "reason"), rows)
    if copies:
        click.echo()
        rows = [copy | {"reason": output.short(copy["reason"])} for copy in copies]
        columns = ("message id", "class", "destination", "since", "attempts", "bytes", "reason")
        drop = ("bytes", "attempts", "since", "destination", "reason")
        output.print_documents(columns, rows, drop=drop)
    shown = f", {len(copies)} shown (--limit)" if cut else ""
    click.echo(f"{total} in the queue{shown}" if total else "empty")
