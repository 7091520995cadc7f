"""``timeoutmgr send``: one message, delayed or at once."""

import json
import sys
import uuid
from datetime import datetime, timedelta

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Command, HeaderPair, common, delay_and_at, option
from timeoutmgr.cli.shared import Shared, opened
from timeoutmgr.errors import DeliveryUnknown, InvalidMessage


@click.command(cls=Command)
@click.argument("destination")
@click.argument("message_type", metavar="TYPE")
@click.argument("body", metavar="BODY|-")
@delay_and_at
@option("--header", "headers", type=HeaderPair(), multiple=True, help="NAME=VALUE; many times.")
@option("--saga", help="What the message belongs to, for cancel-saga.")
@option("--id", "message_id", help="Message id; one is made if not given.")
@option("--cancellable", is_flag=True, help="Only where a store keeps it, not a broker.")
@option(
    "--on-conflict",
    type=click.Choice(["keep", "replace", "error"]),
    help="What to do with a delayed message if its --id was used with other content.",
)
@option("--content-type", default="application/json", show_default=True, help="Of the body.")
@common(environment=False)
@click.pass_obj
def send(
    shared: Shared,
    destination: str,
    message_type: str,
    body: str,
    delay: timedelta | None,
    at: datetime | None,
    headers: tuple[tuple[str, str], ...],
    saga: str | None,
    message_id: str | None,
    cancellable: bool,
    on_conflict: str | None,
    content_type: str,
) -> None:
    """Send a message of TYPE to the queue DESTINATION, at once or when it is due.

    BODY is the text of the message, - reads it from standard input as it is. When the command
    ends with 0 the message is durable.

    Examples:
      timeoutmgr send billing PaymentOverdue '{"order": 7}' --delay 14d --saga order-7
      timeoutmgr send billing Report - --content-type text/csv --at 2030-01-31T09:00Z < report.csv
    """
    content = sys.stdin.buffer.read() if body == "-" else body.encode()
    _check_json(content, content_type)
    chosen = message_id if message_id is not None else str(uuid.uuid4())
    with opened(shared, with_store=False) as endpoint:
        try:
            sent = endpoint.send(
                destination,
                message_type,
                content,
                delay=delay,
                deliver_at=at,
                saga_id=saga,
                headers=dict(headers),
                message_id=chosen,
                cancellable=cancellable,
                on_conflict=on_conflict,
                content_type=content_type,
            )
        except DeliveryUnknown as error:
            raise DeliveryUnknown(f"{error}; send it again with --id {chosen}") from error
    document = {
        "message_id": sent.message_id,
        "destination": sent.destination,
        "id": sent.id,
        "due": output.shown_time(sent.due),
    }
    shared.show(
        document, lambda: output.print_pairs(list(output.without_nothing(document).items()))
    )


def _check_json(content: bytes, content_type: str) -> None:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        return
    try:
        json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(
            f"BODY is not JSON: {error}; quote it for the shell, or name its --content-type"
        ) from error
