"""``timeoutmgr deadletters``: what could not be delivered, and what is to become of it."""

from typing import TYPE_CHECKING, Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.letter_commands import add_commands, chosen_by, require_choice
from timeoutmgr.cli.letters import choosing, in_queue, opened_letters, progress_of
from timeoutmgr.cli.options import Command, common, option, with_examples
from timeoutmgr.cli.shared import Shared

if TYPE_CHECKING:
    from timeoutmgr.deadletter.retrying import Retried

_HELP = """
    Look after the dead-letter queues of the endpoint's node.

    Examples:
      timeoutmgr deadletters list --groups
      timeoutmgr deadletters retry --class NACK_BAD_DST_Q --dry-run
    """

_EXAMPLES = {
    "list": """
    List dead letters, the oldest first, after how many there are of each class and reason.

    Examples:
      timeoutmgr deadletters list --class NACK_BAD_DST_Q --older-than 1d
      timeoutmgr deadletters list --queue deadxact --groups
    """,
    "show": """
    Show the dead letters of message ID, whole.

    Examples:
      timeoutmgr deadletters show 6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11 --body
    """,
    "delete": """
    Delete dead letters for good.

    Examples:
      timeoutmgr deadletters delete --older-than 30d --dry-run
      timeoutmgr deadletters delete --id 6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11
    """,
    "export": """
    Write dead letters as JSON, one a line, with headers and body (base64). They stay.

    Examples:
      timeoutmgr deadletters export --output dead.jsonl
      timeoutmgr deadletters export --destination billing
    """,
}


@click.group("deadletters", help=with_examples(_HELP))
def deadletters() -> None:
    """Hold the commands."""


add_commands(deadletters, in_queue, journal=False, examples=_EXAMPLES)


@deadletters.command("retry", cls=Command, within="deadletters")
@in_queue
@choosing
@option("--id", "ids", multiple=True, help="The message of this id; many times.")
@option("--all", "everything", is_flag=True, help="All that are there.")
@option("--limit", type=click.IntRange(min=1), help="At most so many, the oldest first.")
@option("--dry-run", is_flag=True, help="Only say what would be done.")
@common(environment=False)
@click.pass_obj
def retry(
    shared: Shared,
    /,
    queue_name: str,
    everything: bool,
    limit: int | None,
    dry_run: bool,
    **which: Any,
) -> Exit:
    """Send dead letters to their destinations again, under the same message id.

    A letter leaves the dead-letter queue only when its destination has taken the message. A crash
    between the two repeats it under the same id; where queues and store share a database both are
    one transaction. Its time limits and its hops begin anew. The exit code is 0 if every chosen
    one was sent, 3 if there was none, else 1.

    Examples:
      timeoutmgr deadletters retry --all --dry-run
      timeoutmgr deadletters retry --class NACK_BAD_DST_Q --destination billing
    """
    from timeoutmgr.deadletter.retrying import Retry
    from timeoutmgr.deadletter.retrying import retry as retry_letters

    chosen = require_choice(chosen_by(which), everything, limit, dry_run)
    with opened_letters(shared, queue_name) as opened:
        opened.parts.settings.transport.check()
        letters = chosen.letters(opened.queue, limit)
        with progress_of(shared, "retrying", chosen.count(opened.queue)) as step:
            done = retry_letters(
                opened.parts.settings.transport,
                opened.desk,
                opened.queue,
                letters,
                dry_run=dry_run,
                progress=lambda _one: step(),
            )
    failed = [one for one in done if one.what not in (Retry.RETRIED, Retry.WOULD_RETRY)]
    shared.show(
        {"dry_run": dry_run, "letters": [_document(one) for one in done]},
        lambda: _print(done, len(failed), dry_run),
    )
    if not done:
        return Exit.NOT_FOUND
    return Exit.FAILED if failed else Exit.OK


@deadletters.command("purge", cls=Command, within="deadletters")
@click.argument("queue")
@option("--delete-queue", is_flag=True, help="Delete the queue as well.")
@option("--dry-run", is_flag=True, help="Only say how many messages wait there.")
@common(environment=False)
@click.pass_obj
def purge(shared: Shared, queue: str, delete_queue: bool, dry_run: bool) -> None:
    """Empty QUEUE; each message that asks for it leaves a dead letter, of class NACK_Q_PURGED.

    Stop its consumers first: what one of them has in hand is not seen.

    Examples:
      timeoutmgr deadletters purge billing.old --dry-run
      timeoutmgr deadletters purge billing.old --delete-queue
    """
    from contextlib import closing

    from timeoutmgr.deadletter.removing import Removed, remove_messages
    from timeoutmgr.errors import QueueMissing

    with opened_letters(shared, "deadletter") as opened:
        name = opened.desk.queue_of(queue)
        transport = opened.parts.settings.transport
        if dry_run:
            with closing(transport.session()) as session:
                if session.missing_queues([name]):
                    raise QueueMissing([name], "correct the name")
                done = Removed(messages=session.count(name))
        else:
            done = remove_messages(transport, opened.desk, name, delete_queue=delete_queue)
    document = {
        "queue": name,
        "dry_run": dry_run,
        "messages": done.messages,
        "dead_letters": done.dead,
        "queue_deleted": delete_queue and not dry_run,
    }
    verb = "would be removed" if dry_run else f"removed, {done.dead} of them left dead letters"
    shared.show(document, lambda: click.echo(f"{done.messages} {verb}"))


def _document(one: "Retried") -> dict[str, str]:
    return {
        "message_id": one.letter.message.id,
        "destination": one.letter.destination,
        "class": one.letter.class_name,
        "result": one.what.value,
    }


def _print(done: "list[Retried]", failed: int, dry_run: bool) -> None:
    if done:
        output.print_table(
            ["message id", "destination", "class", "result"],
            [tuple(_document(one).values()) for one in done],
        )
    verb = "would be retried" if dry_run else "retried"
    click.echo(f"{len(done) - failed} {verb}, {failed} stay")
