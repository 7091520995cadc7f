"""Refusal of a conflict whose message asks for an error: it must not be dropped in silence."""

from collections.abc import Iterable

from timeoutmgr.contracts import OnConflict, Repeat, RepeatKind
from timeoutmgr.errors import IdInUse


def refuse(repeats: Iterable[Repeat]) -> None:
    """Raise IdInUse for the first conflict of a timeout whose ``on_conflict`` is ``error``."""
    for repeat in repeats:
        timeout = repeat.timeout
        if repeat.kind is RepeatKind.CONFLICT and timeout.on_conflict is OnConflict.ERROR:
            raise IdInUse(timeout.message.id, timeout.id)
