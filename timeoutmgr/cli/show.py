"""``timeoutmgr show``: one timeout in full."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.options import Command, option
from timeoutmgr.cli.shared import Shared, opened
from timeoutmgr.message.headers import EXCEPTION_MESSAGE, EXCEPTION_TYPE
from timeoutmgr.message.routes import TIMEOUTS, is_delayed_retry
from timeoutmgr.transport.queue_view import waiting_text

if TYPE_CHECKING:
    from timeoutmgr.contracts import HistoryEntry, Timeout

_BELOW: Final = ("headers", "body", "history", "waiting")
"""Keys that are printed below the pairs."""


@click.command(cls=Command)
@click.argument("timeout_id", metavar="ID")
@option("--body", is_flag=True, help="Also show the body as text, or as base64 if it is binary.")
def show(shared: Shared, timeout_id: str, body: bool) -> Exit:
    """Show the timeout ID: its state, its history and, while it is pending, its headers and body.

    A message that waits for a retry is shown with the exception and the reason of its failure. Its
    timeout has a separate id; while it is among the next timeouts, the id of the message finds it
    too. The history names the channel of a cancel: cli, api, or the queue and the message of the
    request.

    An unknown id may be on its way to the store: the command counts the waiting messages.

    Examples:
      timeoutmgr show 5f0c2a1e-8a44-5b7a-9d0e-3c1f2b7a6d55 --body
    """
    with opened(shared, with_queues=False) as endpoint:
        found = endpoint.timeouts.show(timeout_id)
        timeout = None if found is None else found[1]
        known = timeout_id if timeout is None else timeout.id
        history = endpoint.timeouts.history(known)
        waiting = endpoint.timeouts.waiting() if found is None else None
        queue = endpoint.name + TIMEOUTS
    if found is None:
        document: dict[str, Any] = {"id": timeout_id, "state": "unknown", "waiting": waiting}
    else:
        document = {"id": known, "state": found[0].value}
        if timeout is not None:
            document |= _document(timeout, body)
        if history is not None:
            document["history"] = [_event(each) for each in history]
    shared.show(document, lambda: _print(document, queue))
    return Exit.OK if found is not None else Exit.NOT_FOUND


def _document(timeout: "Timeout", with_body: bool) -> dict[str, Any]:
    message = timeout.message
    document: dict[str, Any] = {
        "due": output.shown_time(timeout.due),
        "destination": timeout.destination,
        "saga": timeout.saga_id,
        "created": output.shown_time(timeout.created),
        "attempts": timeout.attempts,
        **({"waits_for": "a retry"} if is_delayed_retry(message.headers) else {}),
        **_failure(message.headers),
        "message_id": message.id,
        "content_type": message.content_type,
        "bytes": len(message.body),
        "headers": dict(message.headers),
    }
    if with_body:
        document |= output.body_document(message.body)
    return document


def _failure(given: Mapping[str, str]) -> dict[str, str | None]:
    """Return why the last attempt failed, if the message with headers *given* waits for a retry."""
    exception, reason = given.get(EXCEPTION_TYPE), given.get(EXCEPTION_MESSAGE)
    return {} if exception is None else {"exception": exception, "reason": reason}


def _event(entry: "HistoryEntry") -> dict[str, Any]:
    return {
        "event": entry.event,
        "at": output.shown_time(entry.at),
        "due": output.shown_time(entry.due),
        "destination": entry.destination,
        "attempt": entry.attempt,
        "node": entry.node,
        "channel": entry.channel,
    }


def _print(document: dict[str, Any], queue: str) -> None:
    own = {name: value for name, value in document.items() if name not in _BELOW}
    output.print_pairs(list(own.items()))
    if "waiting" in document:
        click.echo(output.plain(waiting_text(document["waiting"], queue)))
    for event in document.get("history", ()):
        by = "" if event["channel"] is None else f" by {event['channel']}"
        on = "" if event["node"] is None else f" on {event['node']}"
        click.echo(output.plain(f"  {event['at']} {event['event']}{on}{by}"))
    for name, value in document.get("headers", {}).items():
        click.echo(f"  {output.plain(name)}: {output.plain(value)}")
    if "body" in document:
        lines = document["body"].splitlines()
        click.echo("\n".join(["", *map(output.plain, lines)]))
