"""The check that a combination of transport, store and mode keeps the promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from timeoutmgr.contracts import (
    RepeatKind,
    SharedDatabase,
    StoreCapabilities,
    Transaction,
    TransactionMode,
    TransportCapabilities,
)
from timeoutmgr.errors import CombinationRefused
from timeoutmgr.message.message import Message

# --- direct storage: delayed messages stored past the queue of their timeout manager ----------

StoreDirectly: TypeAlias = Callable[
    [Sequence[Message], Transaction | None], Sequence[RepeatKind | None]
]
"""Stores messages that were routed to the manager past its queue, in the given transaction.

Returns for each message the kind of repeat if its id was used before; None for a new id. Raises
IdInUse.
"""

Examine: TypeAlias = Callable[[Message, Transaction], RepeatKind | None]
"""Returns the kind of repeat of a message, or None; stores nothing. Raises IdInUse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectStorage:
    """Storing past the queue: in a caller's transaction, or in bulk.

    *database* is the database of the store. *start* readies a delayed message store in which no
    installer has run; *examine* is None for a store that cannot find used ids.
    """

    database: SharedDatabase | None
    store: StoreDirectly
    examine: Examine | None = None
    start: Callable[[], None] | None = None


def default_mode(
    transport: TransportCapabilities, same_database: bool, has_store: bool
) -> TransactionMode:
    """Return one transaction for all where the combination can keep it, else ``receive_only``."""
    if TransactionMode.TRANSACTION_SCOPE in transport.modes and (same_database or not has_store):
        return TransactionMode.TRANSACTION_SCOPE
    return TransactionMode.RECEIVE_ONLY


def check_combination(
    transport: TransportCapabilities,
    store: StoreCapabilities | None,
    mode: TransactionMode,
    *,
    same_database: bool,
    accept_loss: bool,
) -> None:
    """Raise CombinationRefused, with reason and remedy, if a combination breaks the promises."""
    if mode not in transport.modes:
        kept = ", ".join(sorted(transport.modes))
        raise CombinationRefused(
            f"transaction mode {mode.value!r} on {transport.name}",
            "this transport cannot undo both together",
            f"Choose one of: {kept}; or use the SQL queue, which has them all.",
        )
    if mode is TransactionMode.TRANSACTION_SCOPE and store is not None and not same_database:
        raise CombinationRefused(
            f"transaction mode {mode.value!r} with {store.name} beside {transport.name}",
            "queue and store do not share one database and user, so no one transaction spans both",
            "Name the same database URL for both, or use 'sends_atomic_with_receive'.",
        )
    if accept_loss:
        return
    if mode is TransactionMode.NONE:
        raise CombinationRefused(
            "transaction mode 'none'",
            "a message is acknowledged before it is handled, and a crash loses it",
            "Use 'receive_only', or say accept_loss=True.",
        )
    for part in (transport, store):
        if part is not None and not part.durable:
            raise CombinationRefused(
                part.name,
                part.note or "what it holds does not survive a killed process",
                "Use RabbitMQ, or the SQL queue and store on SQLite, PostgreSQL or MySQL; or say "
                "accept_loss=True.",
            )
