"""The audit: each requested change of stored timeouts, its author, and its outcome."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, Protocol, runtime_checkable

from timeoutmgr.contracts.stores import CancelResult, ChangeResult, TimeoutStore
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message.foreign import require_storable
from timeoutmgr.message.instants import Micros

AUDITED_BYTES: Final = 60_000
"""Maximum bytes of a selection, or of a reason, in the audit. MySQL keeps 65,535 bytes in a text,
and the audit adds an error to the selection of an attempt that fails."""


class AuditOutcome(StrEnum):
    """How an attempt at a change ended."""

    STARTED = "started"
    """A bulk run has begun; another row records its end."""
    DONE = "done"
    FAILED = "failed"
    DENIED = "denied"
    """A rule forbids it; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedBy:
    """Author of a change, its *channel* (``api``, ``cli``, or a message), and its reason.

    Without an *actor* the store names the user and the host of its process. *role* is the role in
    which the program authorized the actor.
    """

    channel: str
    actor: str | None = None
    role: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An attempt at a change: *action* on *selection*, and its numbers.

    *expected* is the number of timeouts that a plan had found, *changed* the number that changed.
    """

    action: str
    by: ChangedBy
    selection: Mapping[str, Any] = field(default_factory=dict)
    outcome: AuditOutcome = AuditOutcome.DONE
    dry_run: bool = False
    expected: int | None = None
    changed: int | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """A row of the audit: number *number* of a *chain*, with the hash of the row before it.

    The first row of a chain has the hash of the newest row of another chain at that time, or none.
    """

    chain: str
    number: int
    at: Micros
    endpoint: str
    actor: str
    role: str | None
    channel: str
    action: str
    selection: str
    dry_run: int
    expected: int | None
    changed: int | None
    outcome: str
    run_id: str | None
    reason: str | None
    previous_hash: str
    hash: str = ""

    def digest(self) -> str:
        """Return the hash of all values except ``hash``."""
        return sha256(json.dumps(astuple(self)[:-1]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """Result of a check of all rows: *faults*, and the *heads* of the chains.

    A head is the number and the hash of a chain's last row. Heads that are kept elsewhere show
    later whether the end of a chain was cut off.
    """

    rows: int
    faults: Sequence[str]
    heads: Mapping[str, tuple[int, str]]


class AuditCheck:
    """Checks the rows of all chains, chain by chain, each in its order."""

    def __init__(self, heads: Mapping[str, tuple[int, str]]) -> None:
        try:
            self._known = {chain: (int(no), str(hash_)) for chain, (no, hash_) in heads.items()}
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            raise InvalidMessage(
                "a head is the number and the hash of a chain's last row, as verify_audit returns "
                f"it; the given heads are not such pairs: {error}"
            ) from error
        self._faults: list[str] = []
        self._heads: dict[str, tuple[int, str]] = {}
        self._begins: dict[str, str] = {}
        self._rows = 0

    def add(self, row: AuditRecord) -> None:
        """Check *row* by itself and against the row before it."""
        self._rows += 1
        number, before = self._heads.get(row.chain, (-1, None))
        if before is None and row.number == 0 and row.previous_hash:
            self._begins[row.previous_hash] = row.chain
        elif row.number != number + 1:
            self._faults.append(f"{_name(row)}: {row.number - number - 1} rows before it are gone")
        elif before is not None and row.previous_hash != before:
            self._faults.append(f"{_name(row)}: it does not follow the row before it")
        if row.digest() != row.hash:
            self._faults.append(f"{_name(row)}: it was edited")
        known = self._known.get(row.chain)
        if known is not None and known[0] == row.number:
            del self._known[row.chain]
            if known[1] != row.hash:
                self._faults.append(f"{_name(row)}: it is another row than the given head")
        self._heads[row.chain] = row.number, row.hash

    def wanted(self) -> Iterator[str]:
        """Yield the hashes that must exist, because first rows of chains refer to them."""
        yield from self._begins

    def found(self, hashes: Iterable[str]) -> None:
        """Note that rows have *hashes*, which were wanted."""
        for one in hashes:
            del self._begins[one]

    def verdict(self) -> AuditVerdict:
        """Return the verdict; call it after all rows were added."""
        lost = [
            f"chain {chain}: the row before its first is gone" for chain in self._begins.values()
        ]
        cut = [
            f"chain {chain}: row {no}, a given head, is gone"
            for chain, (no, _) in self._known.items()
        ]
        return AuditVerdict(self._rows, [*self._faults, *lost, *cut], self._heads)


def _name(row: AuditRecord) -> str:
    return f"chain {row.chain}, row {row.number}"


@runtime_checkable
class KeepsAudit(TimeoutStore, Protocol):
    """A store that keeps an audit; no store needs to.

    Each of its changes commits with a row of the audit.
    """

    def cancel(
        self, timeout_id: str, *, channel: str | None = None, by: ChangedBy | None = None
    ) -> CancelResult:
        """Cancel a timeout, as any store does; the history names *channel*, the audit *by*."""
        ...

    def reschedule(
        self,
        timeout_id: str,
        due: Micros,
        *,
        channel: str | None = None,
        action: str = "reschedule",
        by: ChangedBy | None = None,
    ) -> ChangeResult:
        """Move a timeout, as any store does; the audit names *action* and *by*, or *channel*."""
        ...

    def write_audit(self, entry: AuditEntry) -> None:
        """Store *entry*, an attempt that changed nothing, in a transaction of its own."""
        ...

    def audit(self, *, limit: int = 100, run_id: str | None = None) -> Sequence[AuditRecord]:
        """Return the newest *limit* rows of the endpoint, the oldest first."""
        ...

    def verify_audit(self, heads: Mapping[str, tuple[int, str]]) -> AuditVerdict:
        """Check all rows of the endpoint, and that the rows that *heads* name still exist."""
        ...


def to_text(document: Mapping[str, Any]) -> str:
    """Return *document* as JSON text."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def require_audited(action: str, by: ChangedBy, selection: Mapping[str, Any]) -> None:
    """Raise InvalidMessage for texts of the change *action* that an audit cannot keep."""
    texts = {"selection": to_text(selection), **asdict(by)}
    for name, text in texts.items():
        given = text or ""
        size = len(given.encode("utf-8", "surrogatepass"))
        if size > AUDITED_BYTES:
            raise InvalidMessage(
                f"the {name} of this {action} has {size:,} bytes, and the audit keeps at most "
                f"{AUDITED_BYTES:,}; give a shorter {name}"
            )
        require_storable(f"the {name} of this {action}", given)
