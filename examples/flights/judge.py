"""Whether every promise was kept: what was accepted against what was delivered. No I/O."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ledger import Accepted, Delivery

from timeoutmgr.instants import Micros

CLOCKS: Final[Micros] = 1_000_000
"""How far a database's clock, which stamps a dispatch, may be from this host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Of a list of durations, in milliseconds."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, micros: Sequence[Micros]) -> "Percentiles":
        """Return nearest ranks, which are durations that were really seen."""
        if not micros:
            return cls(p50=0.0, p99=0.0, max=0.0)
        ordered = sorted(micros)
        ranks = {share: -(-len(ordered) * share // 100) - 1 for share in (50, 99)}
        return cls(
            p50=ordered[ranks[50]] / 1e3, p99=ordered[ranks[99]] / 1e3, max=ordered[-1] / 1e3
        )

    def __str__(self) -> str:
        return f"p50 {self.p50:.0f} ms p99 {self.p99:.0f} ms max {self.max:.0f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of the accepted notices.

    *repeated* are second deliveries under one message id that no crash explains, *by_the_kill*
    those that the killed process does. *redelivered* is what the board's own broker handed out
    once more. *strangers* arrived and were never accepted, *renamed* came under another id.
    """

    accepted: int
    delivered: int
    lost: int
    early: int
    repeated: int
    by_the_kill: int
    redelivered: int
    renamed: int
    strangers: int
    late_at_the_door: int
    lateness: Percentiles
    dispatch: Percentiles
    broken: tuple[str, ...]

    def __str__(self) -> str:
        line = (
            f"{self.accepted} accepted, {self.delivered} delivered, {self.lost} lost, "
            f"{self.early} early, {self.repeated} repeated ({self.by_the_kill} by the kill); "
            f"lateness {self.lateness}"
        )
        return f"{line}; BROKEN: {'; '.join(self.broken)}" if self.broken else line

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    accepted: Sequence[Accepted],
    deliveries: Sequence[Delivery],
    *,
    left: Mapping[str, int],
    killed_at: Micros | None,
    allowed_by_the_kill: int,
) -> Verdict:
    """Compare both records. *left* is what was found where nothing should be.

    A repeat is the kill's if the message had been dispatched before it, and was again after it.
    """
    due = {one.id: one.due for one in accepted}
    by_id: dict[str, list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        by_id[delivery.message_id].append(delivery)
    again = [(found[0], one) for found in by_id.values() for one in found[1:]]
    sent_again = [(first, one) for first, one in again if not one.redelivered]
    by_the_kill = sum(_is_the_kills(first, one, killed_at) for first, one in sent_again)
    firsts = [found[0] for name, found in by_id.items() if name in due]
    counts = {
        "lost": len(due.keys() - by_id.keys()),
        "early": sum(one.received_at < due.get(one.message_id, one.due) for one in deliveries),
        "repeated": len(sent_again) - by_the_kill,
        "renamed": sum(one.message_id != one.notice for one in deliveries),
        "strangers": len(by_id.keys() - due.keys()),
    }
    broken = [f"{count} {what}" for what, count in {**counts, **left}.items() if count]
    if by_the_kill > allowed_by_the_kill:
        broken.append(f"{by_the_kill} repeated by the kill, at most {allowed_by_the_kill} may be")
    if len(due) < len(accepted):
        broken.append(f"{len(accepted) - len(due)} accepted twice")
    if not accepted:
        broken.append("nothing was accepted")
    return Verdict(
        accepted=len(accepted),
        delivered=len(by_id),
        by_the_kill=by_the_kill,
        redelivered=len(again) - len(sent_again),
        late_at_the_door=sum(one.at > one.due for one in accepted),
        lateness=Percentiles.of([one.received_at - due[one.message_id] for one in firsts]),
        dispatch=Percentiles.of([one.dispatched_at - due[one.message_id] for one in firsts]),
        broken=tuple(broken),
        **counts,
    )


def _is_the_kills(first: Delivery, again: Delivery, killed_at: Micros | None) -> bool:
    if killed_at is None:
        return False
    return first.dispatched_at <= killed_at + CLOCKS and again.dispatched_at >= killed_at - CLOCKS
