"""``timeoutmgr deadletters`` and ``timeoutmgr journal``: the stored copies of a node."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.deadletters import copies
from timeoutmgr.cli.deadletters.selection import (
    NARROWING,
    CopySelection,
    JournalEntrySelection,
    OpenQueue,
    dead_letter_queue,
    journal_queue,
    opened_queue,
    progress_of,
    selects_dead_letters,
    selects_entries,
)
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import (
    Command,
    Extent,
    export_file,
    extent,
    limit,
    option,
    show_body,
    with_examples,
)
from timeoutmgr.cli.shared import Shared
from timeoutmgr.errors import QueueMissing
from timeoutmgr.message.routes import CLI

if TYPE_CHECKING:
    from timeoutmgr.deadletter.removal import RemovalResult
    from timeoutmgr.deadletter.retry import RetriedDeadLetter

_HELP = """
    Manage the dead-letter queues of the endpoint's node.

    Examples:
      timeoutmgr deadletters list --groups
      timeoutmgr deadletters retry --class NACK_BAD_DST_Q --dry-run
    """
_HELP_OF_JOURNAL = """
    Manage the journals of the endpoint's node.

    Examples:
      timeoutmgr journal list
      timeoutmgr journal delete --older-than 7d
    """
_groups = option("--groups", "only_groups", is_flag=True, help="Only the groups, not the copies.")
_listed = limit("Maximum number of copies to list; groups count all.", default=100)
_exported = limit("Maximum number of copies, the oldest first.")


deadletters: Final = click.Group("deadletters", help=with_examples(_HELP))


journal: Final = click.Group("journal", help=with_examples(_HELP_OF_JOURNAL))


@deadletters.command("list", cls=Command, within="deadletters")
@selects_dead_letters
@_groups
@_listed
def list_dead_letters(shared: Shared, /, **given: Any) -> None:
    """List dead letters, the oldest first, after their groups by message class and reason.

    Examples:
      timeoutmgr deadletters list --class NACK_BAD_DST_Q --older-than 1d
      timeoutmgr deadletters list --queue deadxact --groups
    """
    copies.list_copies(shared, **given)


@deadletters.command("show", cls=Command, within="deadletters")
@click.argument("message_id", metavar="ID")
@dead_letter_queue
@show_body
def show_dead_letters(shared: Shared, message_id: str, queue_name: str, with_body: bool) -> Exit:
    """Show the complete dead letters of message ID.

    Examples:
      timeoutmgr deadletters show 6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11 --body
    """
    selection = CopySelection(queue_name=queue_name, ids=(message_id,))
    return copies.show_copies(shared, selection, with_body=with_body)


@deadletters.command("delete", cls=Command, within="deadletters")
@selects_dead_letters
@extent("Every copy in the queue.")
def delete_dead_letters(shared: Shared, selection: CopySelection, extent: Extent) -> Exit:
    """Delete dead letters for good.

    Examples:
      timeoutmgr deadletters delete --older-than 30d --dry-run
      timeoutmgr deadletters delete --id 6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11
    """
    return copies.delete_copies(shared, selection, extent)


@deadletters.command("export", cls=Command, within="deadletters")
@selects_dead_letters
@_exported
@export_file
def export_dead_letters(shared: Shared, /, **given: Any) -> Exit:
    """Write dead letters as JSON lines, with headers and body (base64), and keep them.

    An export replaces no file, and leaves no file if no message is selected (exit code 3).

    Examples:
      timeoutmgr deadletters export --output dead.jsonl
      timeoutmgr deadletters export --destination billing
    """
    return copies.export_copies(shared, **given)


@deadletters.command("retry", cls=Command, within="deadletters")
@selects_dead_letters
@extent("Every copy in the queue.")
def retry(shared: Shared, selection: CopySelection, extent: Extent) -> Exit:
    """Send dead letters to their destinations again, under the same message id.

    A dead letter leaves its queue only after its destination has confirmed the message. A crash
    in between repeats the message under the same id; if queues and store share a database, both
    are one transaction. If two retries run at the same time, one sends, and the other reports
    missing. Time limits and hop counts start again. The exit code is 0 if every selected message
    was sent, 3 if none was selected, otherwise 1.

    Examples:
      timeoutmgr deadletters retry --all --dry-run
      timeoutmgr deadletters retry --class NACK_BAD_DST_Q --destination billing
    """
    from timeoutmgr.deadletter.retry import Retry

    extent.require_selection(selection.is_narrowed, NARROWING)
    with opened_queue(shared, selection) as lent:
        done = _retried(shared, lent, selection, extent)
    sent = sum(each.what in (Retry.RETRIED, Retry.WOULD_RETRY) for each in done)
    letters = [_document(each) for each in done]
    shared.show(
        {"dry_run": extent.dry_run, "letters": letters},
        lambda: _print(letters, sent, extent.dry_run),
    )
    if not done:
        return Exit.NOT_FOUND
    return Exit.OK if sent == len(done) else Exit.FAILED


@deadletters.command("purge", cls=Command, within="deadletters")
@click.argument("queue")
@option("--delete-queue", is_flag=True, help="Delete the queue as well.")
@option("--dry-run", is_flag=True, help="Only print the number of waiting messages.")
def purge(shared: Shared, queue: str, delete_queue: bool, dry_run: bool) -> None:
    """Empty QUEUE; each message that requests a dead letter leaves one of class NACK_Q_PURGED.

    Stop its consumers first: messages that a consumer is handling are not removed.

    Examples:
      timeoutmgr deadletters purge billing.old --dry-run
      timeoutmgr deadletters purge billing.old --delete-queue
    """
    from timeoutmgr.deadletter.removal import remove_messages

    with opened_queue(shared, CopySelection()) as lent:
        name = lent.service.queue_of(queue)
        if dry_run:
            done = _waiting(lent, name)
        else:
            transport = lent.parts.settings.transport
            done = remove_messages(transport, lent.service, name, delete_queue=delete_queue)
    document = {
        "queue": name,
        "dry_run": dry_run,
        "messages": done.messages,
        "dead_letters": done.dead,
        "queue_deleted": delete_queue and not dry_run,
    }
    verb = "would be removed" if dry_run else f"removed, {done.dead} of them left dead letters"
    shared.show(document, lambda: click.echo(f"{done.messages} {verb}"))


@journal.command("list", cls=Command, within="journal")
@selects_entries
@_groups
@_listed
def list_journal_entries(shared: Shared, /, **given: Any) -> None:
    """List journal entries, the oldest first.

    Examples:
      timeoutmgr journal list --newer-than 1h
      timeoutmgr journal list --queue billing
    """
    copies.list_copies(shared, **given)


@journal.command("show", cls=Command, within="journal")
@click.argument("message_id", metavar="ID")
@journal_queue
@show_body
def show_journal_entries(shared: Shared, message_id: str, queue_name: str, with_body: bool) -> Exit:
    """Show the complete journal entries of message ID.

    Examples:
      timeoutmgr journal show 6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11 --body
    """
    selection = JournalEntrySelection(queue_name=queue_name, ids=(message_id,))
    return copies.show_copies(shared, selection, with_body=with_body)


@journal.command("delete", cls=Command, within="journal")
@selects_entries
@extent("Every entry of the journal.")
def delete_journal_entries(shared: Shared, selection: CopySelection, extent: Extent) -> Exit:
    """Delete journal entries for good.

    Examples:
      timeoutmgr journal delete --older-than 7d
      timeoutmgr journal delete --all --dry-run
    """
    return copies.delete_copies(shared, selection, extent)


@journal.command("export", cls=Command, within="journal")
@selects_entries
@_exported
@export_file
def export_journal_entries(shared: Shared, /, **given: Any) -> Exit:
    """Write journal entries as JSON lines, with headers and body (base64), and keep them.

    An export replaces no file, and leaves no file if no message is selected (exit code 3).

    Examples:
      timeoutmgr journal export --output journal.jsonl
    """
    return copies.export_copies(shared, **given)


def _retried(
    shared: Shared, lent: OpenQueue, selection: CopySelection, extent: Extent
) -> "Sequence[RetriedDeadLetter]":
    from timeoutmgr.contracts.audit import ChangedBy
    from timeoutmgr.deadletter.retry import Retry, retry
    from timeoutmgr.endpoint.attempts import audited
    from timeoutmgr.endpoint.audited_retries import selection_of

    transport = lent.parts.settings.transport
    transport.check()
    service, queue, by = lent.service, lent.queue, ChangedBy(channel=CLI)
    copies, document = selection.copies(queue, extent.limit), selection_of(asdict(selection))
    with progress_of(shared, "retrying", selection.count(queue)) as step:

        def carry_out() -> "list[RetriedDeadLetter]":
            return retry(
                *(transport, service, queue, copies),
                dry_run=extent.dry_run,
                progress=lambda _result: step(),
            )

        if extent.dry_run:
            return carry_out()
        with audited(lent.parts, "retry-dead-letters", by, document) as work:
            results = carry_out()
            work.changed = sum(each.what is Retry.RETRIED for each in results)
        return results


def _waiting(lent: OpenQueue, name: str) -> "RemovalResult":
    from timeoutmgr.deadletter.removal import RemovalResult

    with closing(lent.parts.settings.transport.session()) as session:
        if session.missing_queues([name]):
            raise QueueMissing([name], "correct the name")
        return RemovalResult(messages=session.count(name))


def _document(result: "RetriedDeadLetter") -> dict[str, str]:
    return {
        "message_id": result.copy.message.id,
        "destination": result.copy.destination,
        "class": result.copy.class_name,
        "result": result.what.value,
    }


def _print(letters: Sequence[dict[str, str]], sent: int, dry_run: bool) -> None:
    if letters:
        output.print_documents(["message id", "destination", "class", "result"], letters)
    verb = "would be retried" if dry_run else "retried"
    click.echo(f"{sent} {verb}, {len(letters) - sent} stay")
