"""Checks that a combination of transport, store and mode keeps the delivery guarantees."""

from __future__ import annotations

from timeoutmgr.contracts import StoreCapabilities, TransactionMode, TransportCapabilities
from timeoutmgr.errors import CombinationRefused


def default_mode(
    transport: TransportCapabilities, same_database: bool, has_store: bool
) -> TransactionMode:
    """Return the mode of one shared transaction if possible, otherwise ``receive_only``."""
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
    """Raise CombinationRefused, with reason and remedy, for a combination that breaks them."""
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
