"""The fate of each task of a run, by the tap of the broker and the log of the tasks."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Attempt = tuple[str, int]
"""A task id, and the number of the retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Tasks as they were sent, published and run.

    *published* counts the messages of each attempt at the tap. *ran* are the lines of the log.
    *stored* tasks still rest in the store, and *queued* in the queue or with a dead worker.
    """

    sent: Collection[str]
    retrying: Collection[str]
    revoked: Collection[str]
    published: Mapping[Attempt, int]
    ran: Sequence[Mapping[str, Any]]
    stored: int
    queued: int
    memory: tuple[float, float]
    """RSS of the worker's main process in MiB: without a task, and with all pending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Counts of a run. Only the first five are promises of this product."""

    lost: int
    early: int
    revoked_ran: int
    dispatched_twice: int
    run_but_not_published: int
    popped: int
    """Published, but neither run nor left in the queue: kombu's Redis removes a message from its
    list before it records the message, and a kill in between loses it."""
    redelivered: int
    """Runs beyond the messages of an attempt: the broker delivered the same message again."""
    left: int
    late_p50_ms: float
    late_p99_ms: float
    memory_empty: float
    memory_pending: float

    def broken(self, most_twice: int) -> list[str]:
        """Return the promises that are broken; *most_twice* attempts may be dispatched twice."""
        limits = {
            "lost": 0,
            "early": 0,
            "revoked_ran": 0,
            "dispatched_twice": most_twice,
            "run_but_not_published": 0,
        }
        found = asdict(self)
        return [
            f"{name} {found[name]}, at most {limit}"
            for name, limit in limits.items()
            if found[name] > limit
        ]


def judge(evidence: Evidence, *, may_pop: bool) -> Verdict:
    """Return the verdict; with *may_pop* the broker may lose a message while it delivers it."""
    runs = Counter((line["id"], line["retries"]) for line in evidence.ran)
    kept = [task for task in evidence.sent if task not in evidence.revoked]
    expected = {(task, 0) for task in kept}
    expected |= {(task, 1) for task in kept if task in evidence.retrying and runs[(task, 0)]}
    missing = expected - runs.keys()
    published = sum(bool(evidence.published.get(attempt)) for attempt in missing)
    vanished = max(0, published - evidence.queued)
    unpublished = max(0, len(missing) - published - evidence.stored)
    late = sorted(line["late"] * 1000 for line in evidence.ran) or [0.0]
    return Verdict(
        lost=unpublished + (0 if may_pop else vanished),
        early=sum(each < 0 for each in late),
        revoked_ran=len({task for task, _ in runs} & set(evidence.revoked)),
        dispatched_twice=sum(count - 1 for count in evidence.published.values()),
        run_but_not_published=sum(attempt not in evidence.published for attempt in runs),
        popped=vanished if may_pop else 0,
        redelivered=sum(
            max(0, count - evidence.published.get(attempt, 0)) for attempt, count in runs.items()
        ),
        left=evidence.stored + evidence.queued,
        late_p50_ms=late[len(late) // 2],
        late_p99_ms=late[len(late) * 99 // 100],
        memory_empty=evidence.memory[0],
        memory_pending=evidence.memory[1],
    )


COLUMNS = (
    ("lost", "lost"),
    ("early", "early"),
    ("revoked, yet ran", "revoked_ran"),
    ("dispatched twice", "dispatched_twice"),
    ("redelivered by the broker", "redelivered"),
    ("lost by kombu's Redis", "popped"),
    ("still waiting", "left"),
)


def table(verdicts: Mapping[str, Verdict]) -> list[str]:
    """Return the lines of a table with a row for each run."""
    heads = ["run", *(head for head, _ in COLUMNS), "worker RSS, MiB: empty → all pending"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, verdict in verdicts.items():
        found = asdict(verdict)
        memory = f"{verdict.memory_empty:.0f} → {verdict.memory_pending:.0f}"
        cells = [name, *(str(found[field]) for _, field in COLUMNS), memory]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
