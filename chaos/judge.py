"""The judge: compares the producers' ledgers with the consumer's. No I/O."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chaos.consumer_ledger import Delivery
from chaos.failed_messages import HandledCounts, broken_by_failures, handled_counts
from chaos.incidents import Incident, counted
from chaos.plan import FaultKind
from chaos.producer_ledger import Fate, Promise
from chaos.repeats import Repeats, again_of
from timeoutmgr.message.instants import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles of durations, in milliseconds."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, micros: Sequence[Micros]) -> "Percentiles":
        """Return nearest ranks: durations that really occurred."""
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
class Migrated:
    """Counts of a run's migrations by their ledger; *moved* timeouts, *killed* processes."""

    completed: int
    aborted: int
    moved: int
    killed: int = 0

    def __str__(self) -> str:
        return (
            f"{self.moved} moved into delay levels by {self.completed} migrations, "
            f"{self.aborted} aborted, {self.killed} times killed"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeVerdict:
    """Verdict on all messages of a run.

    *accepted* and *delivered* exclude *cancelled* messages. *repeated* counts further deliveries
    under the same id, *without_a_crash* the repeats that no fault explains; *redelivered* counts
    redeliveries by the consumer's own broker, which are no repeats. *revived* messages arrived
    after a confirmed cancel, *strangers* were never sent, *renamed* arrived under another id.
    *dead* messages are in a dead-letter queue; *accepted* excludes them. *foreign* counts messages
    of another program, *through_levels* those from RabbitMQ's delay levels; *migrated* describes
    the migration into the levels. *handled* counts batches, coroutines and failures.
    *exactly_once*: one transaction spans queue and store, and no repeat is allowed, crash or
    not. *ended* counts processes that ended by themselves. *broken* names each broken promise.
    """

    accepted: int
    delivered: int
    lost: int
    early: int
    repeated: int
    renamed: int
    without_a_crash: int
    redelivered: int
    cancelled: int
    dead: int
    revived: int
    strangers: int
    lateness: Percentiles
    kills: int
    pauses: int
    cuts: int
    lost_replies: int
    restarts: int
    ended: int
    seed: int
    exactly_once: bool
    broken: tuple[str, ...]
    examples: tuple[str, ...]
    """The steps of a few messages whose promise was broken."""
    through_levels: int = 0
    foreign: int = 0
    migrated: Migrated | None = None
    handled: HandledCounts = field(default_factory=HandledCounts)

    def __str__(self) -> str:
        line = (
            f"accepted {self.accepted}, delivered {self.delivered}, lost {self.lost}, "
            f"early {self.early}, repeated {self.repeated} under the same id, "
            f"repeated under another id {self.renamed}, "
            f"repeated without a crash {self.without_a_crash}; "
            f"lateness {self.lateness}; kills {self.kills}, pauses {self.pauses}, "
            f"cut connections {self.cuts}, lost replies {self.lost_replies}, "
            f"server restarts {self.restarts}, "
            f"redelivered {self.redelivered}, cancelled {self.cancelled}, "
            f"dead letters {self.dead}, "
            f"ended by themselves {self.ended}, seed {self.seed}; {self.handled}"
        )
        if self.foreign:
            line += f"; {self.foreign} of another program"
        if self.through_levels:
            line += f"; {self.through_levels} came through delay levels"
        if self.migrated is not None:
            line += f"; {self.migrated}"
        if self.exactly_once:
            line += "; one transaction spans queue and store, no repeat is allowed"
        return f"{line}; BROKEN: {'; '.join(self.broken)}" if self.broken else line

    def as_json(self) -> dict[str, Any]:
        """Return the verdict for ``json.dumps``."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Input of the judge.

    *dead* maps messages in the dead-letter queues to their time. *left* counts leftovers by
    place, *clock_offset* is the lead of the store's clock over this host's, *exactly_once* says
    whether one transaction spans queue and store, *migrated* sums up the migrations, if any.
    *failures* are failed attempts, *errors* the last attempts of the error queue's messages.
    """

    promises: Mapping[str, Promise]
    deliveries: Sequence[Delivery]
    incidents: Sequence[Incident]
    left: Mapping[str, int]
    clock_offset: Micros
    exactly_once: bool
    ended: int
    seed: int
    dead: Mapping[str, Micros] = field(default_factory=dict)
    migrated: Migrated | None = None
    failures: Sequence[Delivery] = ()
    errors: Sequence[Delivery] = ()


def judge(evidence: Evidence) -> JudgeVerdict:
    """Compare both ledgers."""
    promises = evidence.promises
    by_name: dict[str, list[Delivery]] = defaultdict(list)
    for delivery in evidence.deliveries:
        by_name[delivery.name].append(delivery)
    by_fate = _by_fate(promises)
    missing = by_fate[Fate.DELIVERED] - by_name.keys()
    arrived = by_name.keys() | {one.name for one in evidence.errors}
    revived = by_fate[Fate.NOT_DELIVERED] & arrived
    attempts = (*evidence.deliveries, *evidence.failures)
    early = {one.name for one in attempts if _is_early(one, evidence)}
    early |= {name for name, since in evidence.dead.items() if _died_early(name, since, evidence)}
    undeliverable = {name for name, promise in promises.items() if promise.dies}
    not_dead_lettered = by_fate[Fate.DEAD] - evidence.dead.keys()
    wrongly_dead = evidence.dead.keys() - undeliverable
    again = [pair for name in by_name for pair in again_of(by_name[name], evidence.exactly_once)]
    repeats = Repeats(promises, by_name, evidence.incidents, evidence.clock_offset)
    unexplained = [pair for pair in again if not repeats.is_explained(*pair)]
    of_failures = broken_by_failures(
        promises, by_name.keys(), evidence.errors, None if evidence.exactly_once else repeats
    )
    renamed = {one.name for one in evidence.deliveries if one.message_id != one.name}
    strangers = by_name.keys() - promises.keys()
    firsts = [found[0] for name, found in by_name.items() if name in promises]
    kept = by_fate[Fate.DELIVERED] | (by_fate[Fate.EITHER] & by_name.keys())
    faults = counted(evidence.incidents)
    broken = {
        "lost": len(missing),
        "in no dead-letter queue": len(not_dead_lettered),
        "dead without a cause": len(wrongly_dead),
        "early": len(early),
        "repeated under another id": len(renamed),
        "repeated without a crash": len(unexplained),
        "delivered although cancelled": len(revived),
        "delivered and never sent": len(strangers),
        **{promise: len(names) for promise, names in of_failures.items()},
        **evidence.left,
    }
    if evidence.exactly_once:
        broken["repeated where one transaction spans queue and store"] = len(again)
    sentences = [f"{count} {what}" for what, count in broken.items() if count]
    if not kept:
        sentences.append("nothing was accepted")
    twice = {first.name for first, _again in unexplained}
    if evidence.exactly_once:
        twice |= {first.name for first, _again in again}
    suspects = {*missing, *not_dead_lettered, *wrongly_dead, *early, *revived, *renamed, *twice}
    suspects = suspects.union(*of_failures.values())
    return JudgeVerdict(
        accepted=len(kept),
        delivered=len(kept & by_name.keys()),
        lost=len(missing),
        early=len(early),
        repeated=len(again),
        renamed=len(renamed),
        without_a_crash=len(unexplained),
        redelivered=len(evidence.deliveries) - len(by_name) - len(again),
        cancelled=len(by_fate[Fate.NOT_DELIVERED]),
        dead=len(evidence.dead),
        revived=len(revived),
        strangers=len(strangers),
        lateness=Percentiles.of([one.received_at - promises[one.name].due for one in firsts]),
        kills=faults[FaultKind.KILL],
        pauses=faults[FaultKind.PAUSE],
        cuts=sum(one.connections for one in evidence.incidents),
        lost_replies=faults[FaultKind.LOSE_COMMIT] + faults[FaultKind.LOSE_CONFIRM],
        restarts=faults[FaultKind.RESTART_STORE] + faults[FaultKind.RESTART_BROKER],
        ended=evidence.ended,
        seed=evidence.seed,
        exactly_once=evidence.exactly_once,
        broken=tuple(sentences),
        through_levels=len(
            {one.name for one in evidence.deliveries if one.through_levels} & promises.keys()
        ),
        foreign=len({one.name for one in evidence.deliveries if one.foreign}),
        migrated=evidence.migrated,
        handled=handled_counts(evidence.deliveries, evidence.failures, evidence.errors),
        examples=tuple(_story(name, by_name[name], evidence) for name in sorted(suspects)[:10]),
    )


def _by_fate(promises: Mapping[str, Promise]) -> dict[Fate, set[str]]:
    found: dict[Fate, set[str]] = {fate: set() for fate in Fate}
    for name, promise in promises.items():
        found[promise.fate].add(name)
    return found


def _is_early(delivery: Delivery, evidence: Evidence) -> bool:
    promise = evidence.promises.get(delivery.name)
    if promise is None:
        return False
    if delivery.through_levels:
        return delivery.received_at < promise.due  # the store's clock is not involved
    received_at = delivery.received_at + evidence.clock_offset
    return min(delivery.dispatched_at, received_at) < promise.due


def _died_early(name: str, since: Micros, evidence: Evidence) -> bool:
    promise = evidence.promises.get(name)
    return promise is not None and since + evidence.clock_offset < promise.due


def _story(name: str, deliveries: Sequence[Delivery], evidence: Evidence) -> str:
    promise = evidence.promises.get(name)
    parts = [f"{name}: {promise}"]
    parts += [
        f"by {one.sent_by or 'nobody known'} at {one.dispatched_at}, received {one.received_at}, "
        f"handed out {one.redelivered} times before, id {one.message_id}"
        for one in deliveries
    ]
    parts += [
        f"failed in batch {one.batch or 'of its own'!r} at {one.received_at}, dispatched by "
        f"{one.sent_by} at {one.dispatched_at}"
        for one in evidence.failures
        if one.name == name
    ]
    parts += [
        f"in the error queue since the failure at {one.received_at}"
        for one in evidence.errors
        if one.name == name
    ]
    if deliveries:
        senders = {one.sent_by for one in deliveries} | ({promise.by} if promise else set())
        parts += [
            f"{one.kind} of {one.process or 'the server'} {one.begin}..{one.end}"
            for one in evidence.incidents
            if one.concerns(*senders)
        ][-4:]
    return "; ".join(parts)
