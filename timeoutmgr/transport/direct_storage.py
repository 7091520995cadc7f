"""Direct storage: delayed messages stored past the queue of their timeout manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from timeoutmgr.contracts import RepeatKind, SharedDatabase, Transaction
from timeoutmgr.message.message import Message

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
