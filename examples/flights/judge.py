"""The verdict of the demo: the judge of the chaos run, and the repeats of a kill."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chaos import judge as chaos
from chaos.consumer_ledger import Delivery
from chaos.incidents import SERVERS, Incident
from chaos.judge import Evidence, Percentiles
from chaos.plan import FaultKind
from chaos.producer_ledger import Promise
from timeoutmgr.message.instants import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on the accepted notices.

    *repeated* counts second deliveries under the same message id that no crash explains,
    *by_the_kill* the second deliveries by the kill. *redelivered* counts redeliveries by the
    board's own broker. *strangers* were never accepted, *renamed* arrived under another id.
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
    promises: Mapping[str, Promise],
    deliveries: Sequence[Delivery],
    *,
    left: Mapping[str, int],
    killed_at: Micros | None,
    allowed_by_the_kill: int,
) -> Verdict:
    """Compare both ledgers. *left* counts leftovers by place.

    A repeat is the kill's if the kill lies between the two dispatches.
    """
    kills = [
        # The workers add no trace headers: any of them may have sent a repeat.
        Incident(kind=FaultKind.KILL, process=SERVERS, begin=at, end=at)
        for at in (killed_at,)
        if at is not None
    ]
    found = chaos.judge(
        Evidence(
            promises=promises,
            deliveries=deliveries,
            incidents=kills,
            left=left,
            clock_offset=0,
            exactly_once=False,
            ended=0,
            seed=0,
        )
    )
    by_the_kill = found.repeated - found.without_a_crash
    broken = list(found.broken)
    if by_the_kill > allowed_by_the_kill:
        broken.append(f"{by_the_kill} repeated by the kill, at most {allowed_by_the_kill} may be")
    accepted = [promise for promise in promises.values() if promise.accepted]
    dispatched: dict[str, Micros] = {}
    for one in deliveries:
        dispatched.setdefault(one.name, one.dispatched_at)
    return Verdict(
        accepted=found.accepted,
        delivered=found.delivered,
        lost=found.lost,
        early=found.early,
        repeated=found.without_a_crash,
        by_the_kill=by_the_kill,
        redelivered=found.redelivered,
        renamed=found.renamed,
        strangers=found.strangers,
        late_at_the_door=sum(promise.accepted_at > promise.due for promise in accepted),
        lateness=found.lateness,
        dispatch=Percentiles.of(
            [dispatched[one.name] - one.due for one in accepted if one.name in dispatched]
        ),
        broken=tuple(broken),
    )
