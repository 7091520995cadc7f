"""``timeoutmgr errors`` and ``timeoutmgr retry``: the messages of the error queue."""

import base64
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import (
    Command,
    Extent,
    Instant,
    bundled,
    check_text,
    export_file,
    extent,
    limit,
    option,
    show_body,
    with_examples,
)
from timeoutmgr.cli.shared import Shared, assembled, require_installed
from timeoutmgr.cli.written_files import export_to, show_exported
from timeoutmgr.message.headers import EXCEPTION_STACK
from timeoutmgr.message.message import Received
from timeoutmgr.message.routes import CLI
from timeoutmgr.transport.error_queue_retry import (
    ANY_FAILURE,
    EndpointErrorQueue,
    FailureFilter,
    FailureGroup,
    FailureRecord,
    RetriedMessage,
    RetryRequest,
    RetryResult,
    browse,
    failure_groups,
    failure_record,
)

if TYPE_CHECKING:
    from timeoutmgr.endpoint.assembly import AssembledEndpoint

_HELP = """
    Manage the messages of the error queue: list, show, retry, delete or export them.

    Listing moves no message, and never counts towards a delivery limit: on RabbitMQ, queues with
    such a limit are refused. A limit set by a policy is noticed only if the management API answers.

    Examples:
      timeoutmgr errors list --groups
      timeoutmgr errors retry --exception KeyError --dry-run
    """
_NARROWING: Final = "--id, --exception, --reason, --type, --queue, --since, --until"


_ids = option(
    "--id",
    "ids",
    multiple=True,
    callback=lambda _context, _parameter, given: frozenset(given),
    help="Message id; may be given many times.",
)
_failures = bundled(
    "selection",
    FailureFilter,
    _ids,
    option("--exception", metavar="CLASS", help="Exception class: KeyError, or shop.TooMany."),
    option(
        "--reason", callback=check_text, help="Part of the error's text, in upper or lower case."
    ),
    option("--type", "message_type", help="Message type."),
    option("--queue", help="Queue in which the message failed."),
    option("--since", type=Instant(), help="Earliest time of the failure, in ISO 8601."),
    option("--until", type=Instant(), help="Time before which the message failed, in ISO 8601."),
)
_extent = extent("Every message of the error queue.")


errors: Final = click.Group("errors", help=with_examples(_HELP))


@errors.command("list", cls=Command, within="errors")
@_failures
@option("--groups", "only_groups", is_flag=True, help="Only the groups, not the messages.")
@limit("Maximum number of messages to list; groups count all of them.", default=100)
def list_errors(shared: Shared, selection: FailureFilter, only_groups: bool, limit: int) -> None:
    """List the messages of the error queue, after their groups by exception and message type.

    Examples:
      timeoutmgr errors list --groups
      timeoutmgr errors list --exception KeyError --since 2030-01-01T00:00Z --limit 10
    """
    with _browsed(shared, selection) as (_queue, messages):
        failures = [failure_record(received) for received in messages]
    groups = failure_groups(failures)
    shown = [] if only_groups else [_failure_document(each) for each in failures[:limit]]
    document: dict[str, Any] = {
        "total": len(failures),
        "groups": [_group_document(group) for group in groups],
    }
    if not only_groups:
        document["messages"] = shown
    cut = not only_groups and len(shown) < len(failures)
    shared.show(document, lambda: _print_list(document["groups"], shown, len(failures), cut=cut))


@errors.command("show", cls=Command, within="errors")
@click.argument("message_id", metavar="ID")
@show_body
def show_error(shared: Shared, message_id: str, with_body: bool) -> Exit:
    """Show the complete message ID of the error queue: its headers, and its error's traceback.

    Examples:
      timeoutmgr errors show 6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11 --body
    """
    with _browsed(shared, FailureFilter(ids=frozenset([message_id]))) as (_queue, messages):
        documents = [
            _whole_document(each) | (output.body_document(each.message.body) if with_body else {})
            for each in messages
        ]

    def for_people() -> None:
        for document in documents:
            _print_whole(document)
        if not documents:
            click.echo(f"the error queue holds no message {output.plain(message_id)}")

    shared.show({"messages": documents}, for_people)
    return Exit.OK if documents else Exit.NOT_FOUND


@errors.command("retry", cls=Command, within="errors")
@_failures
@_extent
def retry_errors(shared: Shared, selection: FailureFilter, extent: Extent) -> Exit:
    """Send messages of the error queue back to the queues where they failed, like retry.

    The exit code is 0 if every selected message was sent, 3 if none was selected, otherwise 1.

    Examples:
      timeoutmgr errors retry --exception KeyError --limit 10
      timeoutmgr errors retry --all --dry-run
    """
    return _change(shared, selection, extent, delete=False)


@errors.command("delete", cls=Command, within="errors")
@_failures
@_extent
def delete_errors(shared: Shared, selection: FailureFilter, extent: Extent) -> Exit:
    """Delete messages of the error queue for good; export them first to keep a copy.

    The exit code is 0 if messages were deleted, 3 if none was selected.

    Examples:
      timeoutmgr errors delete --type Ping --until 2030-01-01T00:00Z --dry-run
      timeoutmgr errors delete --id 6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11
    """
    return _change(shared, selection, extent, delete=True)


@errors.command("export", cls=Command, within="errors")
@_failures
@limit("Maximum number of messages.")
@export_file
def export_errors(
    shared: Shared, selection: FailureFilter, limit: int | None, path: Path | None
) -> Exit:
    """Write messages of the error queue as JSON lines, with headers and body, and keep them.

    An export replaces no file, and leaves no file if no message is selected (exit code 3).

    Examples:
      timeoutmgr errors export --output errors.jsonl
      timeoutmgr errors export --queue billing
    """
    count = 0
    with _browsed(shared, selection) as (_queue, messages), export_to(path) as target:
        for received in islice(messages, limit):
            encoded = base64.b64encode(received.message.body).decode()
            document = _whole_document(received) | {"body_base64": encoded}
            target.write(document)
            count += 1
    return show_exported(shared, count, path)


@click.command(cls=Command)
@_ids
@_extent
def retry(shared: Shared, ids: frozenset[str], extent: Extent) -> Exit:
    """Send messages of the error queue back to the queue where each failed.

    A message leaves the error queue only after its queue has confirmed the message. A crash in
    between repeats the message under the same id; on the SQL queue both are one transaction. A
    message stays if it is not selected, if it names no queue, or if it names a queue outside
    limits.allowed_destinations; the endpoint retries the messages of its satellites. The exit
    code is 0 if every selected message was sent, 3 if none was selected, otherwise 1.

    Examples:
      timeoutmgr retry --all --dry-run
      timeoutmgr retry --id 6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11
      timeoutmgr retry --limit 100
    """
    extent.require_selection(bool(ids), "--id")
    request = RetryRequest(ids=ids, limit=extent.limit, dry_run=extent.dry_run)
    queue, results = _retried(shared, request)
    chosen = _chosen(results)
    messages = [_retried_document(each) for each in chosen]
    sent = sum(each.result.is_success for each in chosen)

    def for_people() -> None:
        _print_results(messages)
        verb = "would be retried" if extent.dry_run else "retried"
        # Count only selected messages: those after the limit, or the last id, were not read.
        failed = len(chosen) - sent
        click.echo(f"{sent} {verb}, {failed} of the selected messages stay in {queue}")

    shared.show({"error_queue": queue, "messages": messages}, for_people)
    return _exit_of(chosen)


@contextmanager
def _opened(shared: Shared) -> "Iterator[tuple[AssembledEndpoint, EndpointErrorQueue]]":
    """Yield the parts and the error queue of the endpoint, after a check of its tables."""
    from timeoutmgr.endpoint.audited_retries import error_queue_of

    with assembled(shared) as parts:
        require_installed(parts.settings.transport)
        yield parts, error_queue_of(parts)


@contextmanager
def _browsed(
    shared: Shared, selection: FailureFilter
) -> Iterator[tuple[EndpointErrorQueue, Iterator[Received]]]:
    """Yield the error queue and its selected messages; return these to the queue at the end."""
    with (
        _opened(shared) as (parts, queue),
        closing(browse(parts.settings.transport, queue.name, selection)) as messages,
    ):
        yield queue, messages


def _retried(shared: Shared, request: RetryRequest) -> tuple[str, list[RetriedMessage]]:
    """Carry out *request*; return the name of the error queue, and the results."""
    from timeoutmgr.contracts.audit import ChangedBy
    from timeoutmgr.deadletter.delivery_headers import prepared_for_retry
    from timeoutmgr.endpoint.audited_retries import retry_failures

    with _opened(shared) as (parts, queue):
        by = ChangedBy(channel=CLI)
        return queue.name, retry_failures(parts, request, by, prepare=prepared_for_retry)


def _change(shared: Shared, selection: FailureFilter, extent: Extent, *, delete: bool) -> Exit:
    extent.require_selection(selection != ANY_FAILURE, _NARROWING)
    request = RetryRequest(
        which=selection, limit=extent.limit, dry_run=extent.dry_run, delete=delete
    )
    if extent.dry_run:
        with _browsed(shared, selection) as (queue, browsed):
            name = queue.name
            results = [queue.judge(each, request) for each in islice(browsed, extent.limit)]
    else:
        name, results = _retried(shared, request)
    chosen = _chosen(results)
    messages = [_retried_document(each) for each in chosen]
    document = {"error_queue": name, "dry_run": extent.dry_run, "messages": messages}
    failed = sum(not each.result.is_success for each in chosen)
    verb = ("would be " if extent.dry_run else "") + ("deleted" if delete else "retried")

    def for_people() -> None:
        _print_results(messages)
        click.echo(f"{len(chosen) - failed} {verb}" + (f", {failed} stay" if failed else ""))

    shared.show(document, for_people)
    return _exit_of(chosen)


def _chosen(results: list[RetriedMessage]) -> list[RetriedMessage]:
    return [each for each in results if each.result is not RetryResult.LEFT]


def _exit_of(chosen: Sequence[RetriedMessage]) -> Exit:
    if not chosen:
        return Exit.NOT_FOUND
    return Exit.OK if all(each.result.is_success for each in chosen) else Exit.FAILED


def _failure_document(failure: FailureRecord) -> dict[str, Any]:
    return {
        "message_id": failure.message_id,
        "exception": failure.exception,
        "reason": failure.reason,
        "type": failure.message_type,
        "queue": failure.queue,
        "endpoint": failure.endpoint,
        "time": output.shown_time(failure.at),
        "bytes": failure.size,
    }


def _group_document(group: FailureGroup) -> dict[str, Any]:
    return {
        "count": group.count,
        "exception": group.exception,
        "type": group.message_type,
        "oldest": output.shown_time(group.oldest),
        "newest": output.shown_time(group.newest),
        "example": group.example,
    }


def _whole_document(received: Received) -> dict[str, Any]:
    given = dict(received.message.headers)
    return {
        **_failure_document(failure_record(received)),
        "content_type": received.message.content_type,
        "traceback": given.pop(EXCEPTION_STACK, None),
        "headers": given,
    }


def _retried_document(result: RetriedMessage) -> dict[str, str | None]:
    return {
        "message_id": result.message_id,
        "queue": result.queue,
        "result": result.result.value,
        "failed_with": result.reason,
    }


def _print_list(
    groups: Sequence[dict[str, Any]], failures: Sequence[dict[str, Any]], total: int, *, cut: bool
) -> None:
    if groups:
        columns = ["count", "exception", "type", "newest", "example"]
        rows = [group | {"example": output.short(group["example"])} for group in groups]
        output.print_documents(columns, rows, drop=("newest",))
    if failures:
        click.echo()
        columns = ["message id", "time", "queue", "type", "exception", "reason"]
        rows = [failure | {"reason": output.short(failure["reason"])} for failure in failures]
        output.print_documents(columns, rows, drop=("queue", "time", "type", "reason"))
    shown = f", {len(failures)} shown (--limit)" if cut else ""
    click.echo(f"{total} in the error queue{shown}" if total else "no such message")


def _print_whole(document: dict[str, Any]) -> None:
    below = ("headers", "traceback", "body")
    output.print_pairs([pair for pair in document.items() if pair[0] not in below])
    for name, value in document["headers"].items():
        click.echo(f"  {output.plain(name)}: {output.plain(value)}")
    for name in ("traceback", "body"):
        lines = (document.get(name) or "").splitlines()
        if lines:
            click.echo("\n".join(["", *map(output.plain, lines)]))


def _print_results(messages: Sequence[dict[str, str | None]]) -> None:
    if messages:
        shown = [each | {"failed_with": output.short(each["failed_with"])} for each in messages]
        output.print_documents(["message id", "queue", "result", "failed with"], shown)
