"""``timeoutmgr send``: one message, delayed or at once."""

import json
import sys
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Command, Pair, bundled, by_name, delay_and_at, option
from timeoutmgr.cli.shared import Shared, opened
from timeoutmgr.errors import DeliveryUnknown, InvalidMessage

if TYPE_CHECKING:
    from timeoutmgr.contracts import ConflictName
    from timeoutmgr.endpoint.endpoint import Endpoint
    from timeoutmgr.sender.composer import Sent


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFlags:
    """The options of ``send``."""

    delay: timedelta | None
    at: datetime | None
    headers: tuple[tuple[str, str], ...]
    saga: str | None
    message_id: str | None
    cancellable: bool
    on_conflict: "ConflictName | None"
    content_type: str


@click.command(cls=Command)
@click.argument("destination")
@click.argument("message_type", metavar="TYPE")
@click.argument("body", metavar="BODY|-")
@bundled(
    "flags",
    SendFlags,
    delay_and_at,
    option(
        "--header",
        "headers",
        type=Pair(),
        multiple=True,
        help="Header as NAME=VALUE; may be given many times.",
    ),
    option("--saga", help="Saga of the message, for cancel-saga."),
    option("--id", "message_id", help="Message id. Without it, a random id."),
    option(
        "--cancellable", is_flag=True, help="Send only if a store keeps the message, not a broker."
    ),
    option(
        "--on-conflict",
        type=click.Choice(["keep", "replace", "error"]),
        help="Action if a delayed message with other content has the same --id.",
    ),
    option("--content-type", default="application/json", help="Content type of the body."),
)
def send(shared: Shared, destination: str, message_type: str, body: str, flags: SendFlags) -> None:
    """Send a message of TYPE to the queue DESTINATION, at once or when it is due.

    BODY is the text of the message; - reads it unchanged from standard input. If the command ends
    with exit code 0, the message is durable.

    Examples:
      timeoutmgr send billing PaymentOverdue '{"order": 7}' --delay 14d --saga order-7
      timeoutmgr send billing Report - --content-type text/csv --at 2030-01-31T09:00Z < report.csv
    """
    # Python decodes arguments with surrogateescape: this restores the shell's bytes.
    argument = body.encode(errors="surrogateescape")
    content = sys.stdin.buffer.read() if body == "-" else argument
    _check_json(content, flags.content_type)
    with opened(shared, with_store=False) as endpoint:
        sent = _sent(endpoint, destination, message_type, content, flags)
    document = {
        "message_id": sent.message_id,
        "destination": sent.destination,
        "id": sent.id,
        "due": output.shown_time(sent.due),
    }
    shared.show(
        document, lambda: output.print_pairs(list(output.without_nothing(document).items()))
    )


def _sent(
    endpoint: "Endpoint", destination: str, message_type: str, content: bytes, flags: SendFlags
) -> "Sent":
    message_id = flags.message_id if flags.message_id is not None else str(uuid.uuid4())
    try:
        return endpoint.send(
            destination,
            message_type,
            content,
            delay=flags.delay,
            deliver_at=flags.at,
            saga_id=flags.saga,
            headers=by_name("--header", flags.headers),
            message_id=message_id,
            cancellable=flags.cancellable,
            on_conflict=flags.on_conflict,
            content_type=flags.content_type,
        )
    except DeliveryUnknown as error:
        raise DeliveryUnknown(f"{error}; send it again with --id {message_id}") from error


def _check_json(content: bytes, content_type: str) -> None:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        return
    try:
        json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(
            f"BODY is not JSON: {error}; quote it for the shell, or name its --content-type"
        ) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it has no {name}")
