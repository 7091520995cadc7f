"""Channels: the ways by which an order to cancel comes, as the history of a timeout names them.

A message in a queue may be forged: the name of its channel says which queue and which message, so
that an operator finds the sender, and tells the order from an operator's own.
"""

from typing import Final

from timeoutmgr.message import headers
from timeoutmgr.message.message import Received
from timeoutmgr.message.redaction import on_one_line

API: Final = "api"
CLI: Final = "cli"
EARLY_CANCEL: Final = "early cancel"
"""Of a message that was cancelled before it came: only the API and the command line can do so."""

_LONGEST: Final = 400
"""Characters of a channel that are kept."""


def of_message(received: Received) -> str:
    """Return the channel of an order that *received* gives: its queue, its id and its sender.

    The message's own words may be invented, and are cut.
    """
    channel = f"queue {received.queue!r:.80}, message {received.message.id!r:.80}"
    given = received.message.headers
    named = (
        ("endpoint", given.get(headers.ORIGINATING_ENDPOINT)),
        ("host", given.get(headers.ORIGINATING_MACHINE)),
    )
    return bounded(
        channel + "".join(f", says {what} {value!r:.60}" for what, value in named if value)
    )


def bounded(channel: str) -> str:
    """Return *channel* as it may stand in a history: one short line of printable text."""
    return on_one_line(channel[:_LONGEST])[:_LONGEST]
