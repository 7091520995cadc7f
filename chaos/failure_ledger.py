"""The consumer's ledger of failures, and the error queue's messages as rows of this ledger.

The ledger is a file: the transaction of a failed message is rolled back, so a row in a database
would not stay.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from chaos.consumer_ledger import Delivery
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, from_wire
from timeoutmgr.message.message import Message

FAILURES: Final = "failures.jsonl"


class FailureLedgerWriter:
    """Adds a line for each failed attempt, before the handler fails; safe for many threads."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, attempt: Delivery) -> None:
        """Add a line in one call: a killed process leaves either a complete line or none."""
        self._file.write(json.dumps(asdict(attempt)).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_failures(path: Path) -> list[Delivery]:
    """Return all failed attempts in their order; none if the file does not exist."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Delivery(**json.loads(line)) for line in lines]


def error_copies(messages: Iterable[Message], failures: Sequence[Delivery]) -> list[Delivery]:
    """Return the failed attempt for each message of the error queue."""
    by_id: dict[str, list[Delivery]] = defaultdict(list)
    for failure in failures:
        by_id[failure.message_id].append(failure)
    return [_attempt(message, by_id[message.id]) for message in messages]


def _attempt(message: Message, failures: Sequence[Delivery]) -> Delivery:
    text = message.headers.get(headers.TIME_OF_FAILURE)
    copied_at: Micros = 0 if text is None else from_wire(text)
    earlier = [one for one in failures if one.received_at <= copied_at]
    if earlier:
        return earlier[-1]
    return Delivery(
        message_id=message.id,
        name=message.id,
        dispatched_at=copied_at,
        received_at=copied_at,
        redelivered=0,
    )
