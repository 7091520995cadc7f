"""The verdict of the demo: the judge of the chaos run, and what one kill may have repeated."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from timeoutmgr.instants import Micros
from timeoutmgr.testing.chaos import judge as chaos
from timeoutmgr.testing.chaos.deliveries import Delivery
from timeoutmgr.testing.chaos.incidents import SERVERS, Incident
from timeoutmgr.testing.chaos.judge import Evidence, Percentiles
from timeoutmgr.testing.chaos.plan import FaultKind
from timeoutmgr.testing.chaos.promises import Promise


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
    promises: Mapping[str, Promise],
    deliveries: Sequence[Delivery],
    *,
    left: Mapping[str, int],
    killed_at: Micros | None,
    allowed_by_the_kill: int,
) -> Verdict:
    """Compare both records. *left* is what was found where nothing should be.

    A repeat is the kill's if the kill lies between the two dispatches.
    """
    kills = [
        # The workers do not sign what they send, so that it may have been any of them.
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
