"""``timeoutmgr errors``: the messages of the error queue, by the error that brought them there."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, Decorated, Instant, common, option, with_examples
from timeoutmgr.cli.shared import Shared, assembled, require_installed

if TYPE_CHECKING:
    from timeoutmgr.cli.failures import Failed, FailureFilter, FailureGroup
    from timeoutmgr.cli.retrying import ErrorQueueOf, Retried
    from timeoutmgr.contracts import Transport
    from timeoutmgr.message import Received

_HELP = """
    Look after the messages of the error queue: list, show, retry, delete or export them.

    A look moves nothing, and never counts towards a delivery limit: on RabbitMQ a queue with such
    a limit is refused. A limit that a policy sets is seen only where the management API answers.

    Examples:
      timeoutmgr errors list --groups
      timeoutmgr errors retry --exception KeyError --dry-run
    """
_SENTENCE: Final = 80


@click.group("errors", help=with_examples(_HELP))
def errors() -> None:
    """Hold the commands."""


def _choosing(function: Decorated) -> Decorated:
    """Add the options that choose messages; the command gets them as ``which``."""

    @wraps(function)
    def called(
        *args: Any,
        ids: tuple[str, ...],
        exception: str | None,
        message_type: str | None,
        queue: str | None,
        since: datetime | None,
        until: datetime | None,
        **given: Any,
    ) -> object:
        from timeoutmgr.cli.failures import FailureFilter

        which = FailureFilter(
            ids=frozenset(ids),
            exception=exception,
            message_type=message_type,
            queue=queue,
            since=since,
            until=until,
        )
        return function(*args, which=which, **given)

    decorated: Callable[..., object] = called
    for add in reversed(_CHOOSING):
        decorated = add(decorated)
    return decorated  # type: ignore[return-value]  # its parameters are the options' by now


_CHOOSING: Final = (
    option("--id", "ids", multiple=True, help="Id of a message; many times."),
    option("--exception", metavar="CLASS", help="Exception class: KeyError, or shop.TooMany."),
    option("--type", "message_type", help="Message type."),
    option("--queue", help="Queue in which the message failed."),
    option("--since", type=Instant(), help="Earliest time of the failure, in ISO 8601."),
    option("--until", type=Instant(), help="Time before which the message failed."),
)


def _bulk(function: Decorated) -> Decorated:
    """Add the options of commands that change the queue."""
    for add in (
        option("--dry-run", is_flag=True, help="Say what would be done, and do nothing."),
        option("--limit", type=click.IntRange(min=1), help="Maximum number of messages."),
        option("--all", "everything", is_flag=True, help="Every message of the error queue."),
    ):
        function = add(function)
    return function


@errors.command("list", cls=Command, within="errors")
@_choosing
@option("--groups", is_flag=True, help="Groups alone, without the messages.")
@option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Maximum number of messages to list; groups count all of them.",
)
@common(environment=False)
@click.pass_obj
def list_errors(shared: Shared, which: "FailureFilter", groups: bool, limit: int) -> None:
    """List the messages of the error queue, after their groups by exception and message type.

    Examples:
      timeoutmgr errors list --groups
      timeoutmgr errors list --exception KeyError --since 2030-01-01T00:00Z --limit 10
    """
    from timeoutmgr.cli.failures import failed_of, grouped

    with _seen(shared, which) as (_queue, messages):
        failed = [failed_of(received) for received in messages]
    found = grouped(failed)
    shown = [] if groups else failed[:limit]
    document: dict[str, Any] = {
        "total": len(failed),
        "groups": [group.document() for group in found],
    }
    if not groups:
        document["messages"] = [each.document() for each in shown]
    shared.show(document, lambda: _print_list(found, shown, len(failed), groups))


@errors.command("show", cls=Command, within="errors")
@click.argument("message_id", metavar="ID")
@option("--body", is_flag=True, help="Show the body too: as text, or base64 if it is none.")
@common(environment=False)
@click.pass_obj
def show_error(shared: Shared, message_id: str, body: bool) -> Exit:
    """Show the message ID of the error queue whole: its headers, and the traceback of its error.

    Examples:
      timeoutmgr errors show 6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11 --body
    """
    from timeoutmgr.cli.failures import FailureFilter, whole

    with _seen(shared, FailureFilter(ids=frozenset({message_id}))) as (_queue, messages):
        documents = [_with_body(whole(each), each, body) for each in messages]

    def for_people() -> None:
        for document in documents:
            _print_whole(document)
        if not documents:
            click.echo(f"the error queue holds no message {output.plain(message_id)}")

    shared.show({"messages": documents}, for_people)
    return Exit.OK if documents else Exit.NOT_FOUND


@errors.command("retry", cls=Command, within="errors")
@_choosing
@_bulk
@common(environment=False)
@click.pass_obj
def retry_errors(
    shared: Shared, which: "FailureFilter", everything: bool, limit: int | None, dry_run: bool
) -> Exit:
    """Send messages of the error queue back to the queues where they failed, as retry does.

    The exit code is 0 if every chosen message was sent, 3 if there was none, else 1.

    Examples:
      timeoutmgr errors retry --exception KeyError --limit 10
      timeoutmgr errors retry --all --dry-run
    """
    _require_choice(which, everything, limit, dry_run)
    return _change(shared, which, limit, dry_run, delete=False)


@errors.command("delete", cls=Command, within="errors")
@_choosing
@_bulk
@common(environment=False)
@click.pass_obj
def delete_errors(
    shared: Shared, which: "FailureFilter", everything: bool, limit: int | None, dry_run: bool
) -> Exit:
    """Delete messages of the error queue for good; export them first to keep a copy.

    The exit code is 0 if messages were deleted, 3 if there was none.

    Examples:
      timeoutmgr errors delete --type Ping --until 2030-01-01T00:00Z --dry-run
      timeoutmgr errors delete --id 6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11
    """
    _require_choice(which, everything, limit, dry_run)
    return _change(shared, which, limit, dry_run, delete=True)


@errors.command("export", cls=Command, within="errors")
@_choosing
@option("--limit", type=click.IntRange(min=1), help="Maximum number of messages.")
@option(
    "--output",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; without it, standard output.",
)
@common(environment=False)
@click.pass_obj
def export_errors(
    shared: Shared, which: "FailureFilter", limit: int | None, path: Path | None
) -> Exit:
    """Write messages of the error queue as JSON, one a line, with headers and body. They stay.

    Examples:
      timeoutmgr errors export --output errors.jsonl
      timeoutmgr errors export --queue billing
    """
    from timeoutmgr.cli.failures import whole

    count = 0
    with (
        _seen(shared, which) as (_queue, messages),
        # Once there is something to read from: it empties a file that is there.
        click.open_file("-" if path is None else str(path), "w", encoding="utf-8") as target,
    ):
        for received in islice(messages, limit):
            target.write(json.dumps(whole(received)) + "\n")
            count += 1
    if path is not None:
        document = {"exported": count, "file": str(path)}
        shared.show(document, lambda: click.echo(f"{count} exported to {path}"))
    return Exit.OK if count else Exit.NOT_FOUND


@contextmanager
def _seen(
    shared: Shared, which: "FailureFilter"
) -> "Iterator[tuple[ErrorQueueOf, Iterator[Received]]]":
    """Lend the error queue and its chosen messages, given back at the end."""
    from timeoutmgr.cli.failures import look

    with (
        _opened(shared) as (transport, queue),
        closing(look(transport, queue.name, which)) as messages,
    ):
        yield queue, messages


@contextmanager
def _opened(shared: Shared) -> "Iterator[tuple[Transport, ErrorQueueOf]]":
    from timeoutmgr.cli.retrying import error_queue_of

    with assembled(shared) as parts:
        require_installed(parts.settings.transport)
        yield parts.settings.transport, error_queue_of(parts.settings)


def _require_choice(
    which: "FailureFilter", everything: bool, limit: int | None, dry_run: bool
) -> None:
    if everything and which.says_something:
        raise click.UsageError("--all and a choice (--id, --exception, …) exclude each other")
    if not (everything or which.says_something or limit or dry_run):
        raise click.UsageError(
            "say which: --all, --id, --exception, --type, --queue, --since, --until or --limit; "
            "or look first with --dry-run"
        )


def _change(
    shared: Shared, which: "FailureFilter", limit: int | None, dry_run: bool, *, delete: bool
) -> Exit:
    from timeoutmgr.cli.retrying import Choice, judged, retry_from

    choice = Choice(which=which, limit=limit, dry_run=dry_run, delete=delete)
    if dry_run:
        with _seen(shared, which) as (queue, messages):
            chosen = [judged(received, queue, choice) for received in islice(messages, limit)]
    else:
        with _opened(shared) as (transport, queue):
            results = retry_from(transport, queue, choice)
        chosen = [result for result in results if result.what != "left"]
    failed = [each for each in chosen if each.what not in _DONE]
    document = {
        "error_queue": queue.name,
        "dry_run": dry_run,
        "messages": [each.document() for each in chosen],
    }
    shared.show(document, lambda: _print_changed(chosen, len(failed), dry_run, delete))
    if not chosen:
        return Exit.NOT_FOUND
    return Exit.FAILED if failed else Exit.OK


_DONE: Final = ("retried", "would_retry", "deleted", "would_delete")


def _with_body(document: dict[str, Any], received: "Received", body: bool) -> dict[str, Any]:
    encoded = document.pop("body_base64")
    if body:
        try:
            document["body"] = received.message.body.decode()
        except UnicodeDecodeError:
            document["body_base64"] = encoded
    return document


def _print_list(
    groups: "list[FailureGroup]", failed: "list[Failed]", total: int, only_groups: bool
) -> None:
    if groups:
        output.print_table(
            ["count", "exception", "type", "newest", "example"],
            [
                (
                    group.count,
                    group.exception,
                    group.message_type,
                    output.shown_time(group.newest),
                    _short(group.example),
                )
                for group in groups
            ],
            drop=("newest",),
        )
    if failed:
        click.echo()
        output.print_table(
            ["message id", "time", "queue", "type", "exception", "reason"],
            [
                (
                    each.message_id,
                    output.shown_time(each.at),
                    each.queue,
                    each.message_type,
                    each.exception,
                    _short(each.reason),
                )
                for each in failed
            ],
            drop=("queue", "time", "type", "reason"),
        )
    cut = "" if only_groups or len(failed) == total else f", {len(failed)} shown (--limit)"
    click.echo(f"{total} in the error queue{cut}" if total else "no such message")


def _print_whole(document: dict[str, Any]) -> None:
    own = {
        name: value
        for name, value in document.items()
        if name not in ("headers", "traceback", "body")
    }
    output.print_pairs(list(own.items()))
    for name, value in document["headers"].items():
        click.echo(f"  {output.plain(name)}: {output.plain(value)}")
    for name in ("traceback", "body"):
        lines = (document.get(name) or "").splitlines()
        if lines:
            click.echo("\n".join(["", *map(output.plain, lines)]))


def _print_changed(chosen: "list[Retried]", failed: int, dry_run: bool, delete: bool) -> None:
    if chosen:
        output.print_table(
            ["message id", "queue", "result", "failed with"],
            [(each.message_id, each.queue, each.what, _short(each.reason)) for each in chosen],
        )
    done = "deleted" if delete else "retried"
    verb = f"would be {done}" if dry_run else done
    click.echo(f"{len(chosen) - failed} {verb}" + (f", {failed} stay" if failed else ""))


def _short(reason: str | None) -> str | None:
    return None if reason is None else reason.partition("\n")[0][:_SENTENCE]
