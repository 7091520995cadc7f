"""Seconds from the due instant until the user's function has run, beside peers.

Each case executes one function that records the time, in one worker process. The rate is that of
jobs due at one instant, from that instant until the function has run for the last job. Lateness is
that of 1,000 jobs over 20 seconds, from each due time until the function runs. Jobs that wait for a
tenth of a second run concurrently: as many as there are threads, or coroutines.
"""

import os
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from statistics import median

from beside_peers import PACKAGES, PEERS, SETTLE, Peer, executed, run
from harness.figures import Sample, apart, cpu_ratios, interleave, ratio
from harness.report import Report, options, parsed
from harness.servers import servers
from peers import timeoutmgr_handler as ours


@dataclass(frozen=True)
class Claim:
    """A case of ours, the peer that does the same work, and the minimum ratio of their rates."""

    server: str
    peer: str
    bar: float
    store: str | None = None
    """The server of the timeouts, if it differs from that of the queues."""
    lateness: float = 0.0
    """Maximum lateness of 99 of 100 jobs, in milliseconds."""
    share: int = 1
    """Divisor of ``--count``: a slow peer would need minutes for all jobs."""
    pace: int = 2000


CLAIMS = {
    "one PostgreSQL": Claim("postgres", "pgqueuer, batch 200", 0.7, lateness=20),
    "one SQLite file": Claim("sqlite", "huey, SQLite", 1.5, lateness=30, share=3, pace=1000),
    "RabbitMQ + PostgreSQL": Claim(
        "rabbitmq", "Celery ETA, RabbitMQ", 5, store="postgres", lateness=12
    ),
}


WAIT, THREADS, COROUTINES = 0.1, 32, 200
BARE = "the bare loop of the same steps"
BARE_LOOP = Peer("bare_loop", "rabbitmq", pace=2_000, worker_first=False)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=[*CLAIMS], action="append", help="these; repeatable")
    parser.add_argument("--alone", action="store_true", help="without the peers, for a look")
    parser.add_argument("--bare", action="store_true", help="beside the limit, on RabbitMQ")
    parser.add_argument("--threads", type=int, help="threads of handlers (the default of users)")
    parser.add_argument("--dispatchers", type=int, help="threads of the timeout manager (likewise)")
    parser.add_argument("--mode", help="transaction mode (the default of users)")
    parser.add_argument("--question", choices=[*QUESTIONS], help="one question")
    given = parsed(parser, count=20_000, quick=1_000)
    claims = {name: CLAIMS[name] for name in given.only or CLAIMS}
    report = Report("Until the own function has run", settings_of(given))
    chosen = {
        ours.THREADS: given.threads,
        ours.DISPATCHERS: given.dispatchers,
        ours.MODE: given.mode,
    }
    with environment(chosen):
        for name, claim in claims.items():
            for question in [given.question] if given.question else QUESTIONS:
                QUESTIONS[question](name, claim, given, report)
    report.give(given)


def settings_of(given: Namespace) -> dict[str, object]:
    """Return the conditions of the figures: volumes, rounds, versions, and server settings."""
    versions = {} if given.alone else {name: metadata.version(name) for name in PACKAGES}
    asked = {name: getattr(given, name) or "usual" for name in ("threads", "dispatchers", "mode")}
    with servers("postgres") as running:
        volumes = {"messages": given.count, "rounds": given.rounds, "body": "512 B"}
        return {**volumes, **asked, **versions, **running.settings}


def measure_rate(name: str, claim: Claim, given: Namespace, report: Report) -> None:
    count = given.count // claim.share
    cases = {f"ours, {name}": partial(handled, claim, count)}
    if not given.alone:
        cases[claim.peer] = partial(run, PEERS[claim.peer], count)
    if given.bare and claim.store is not None:
        cases[BARE] = partial(run, BARE_LOOP, count, partial(store_of, claim))
    samples = interleave(cases, given.rounds, warm_up=False)
    report.runs(samples)
    mine, *_ = samples.values()
    if not given.alone:
        report.faster(
            f"handler executed, {name} ÷ {claim.peer}", mine, samples[claim.peer], claim.bar
        )
    if BARE in samples:
        report.faster(f"handler executed, {name} ÷ {BARE}", mine, samples[BARE], 0.85)
        if not given.alone:
            report_limit(samples[BARE], samples[claim.peer], claim, report)


def report_limit(bare: list[Sample], peer: list[Sample], claim: Claim, report: Report) -> None:
    """Report how much faster than the peer the bare loop is: the limit for any framework."""
    beside = f"by CPU {median(cpu_ratios(peer, bare)):.2f}; the bar is {claim.bar:g}"
    report.fact(f"{BARE} ÷ {claim.peer}", ratio(bare, peer), beside=beside)


def measure_lateness(name: str, claim: Claim, given: Namespace, report: Report) -> None:
    runs = [lateness(claim, 200 if given.quick else 1_000) for _ in range(given.rounds)]
    early = min(each[0] for each in runs)
    p50, p99 = ([each[len(each) * part // 100] for each in runs] for part in (50, 99))
    beside = (
        f"p50 {median(p50):.1f} ms, earliest {early:.1f} ms, spread {apart(p99):.0%}, "
        f"{len(runs)} rounds of {len(runs[0]):,}"
    )
    report.bar(
        f"lateness until the function runs, p99, {name}",
        median(p99),
        claim.lateness,
        at_most=True,
        unit=" ms",
        beside=beside,
    )


def measure_waiting(name: str, claim: Claim, given: Namespace, report: Report) -> None:
    ways = {
        f"{THREADS} threads": ({ours.THREADS: THREADS}, THREADS),
        f"{COROUTINES} coroutines": ({ours.COROUTINES: COROUTINES}, COROUTINES),
    }
    for way, (settings, at_once) in ways.items():
        allowed = at_once / WAIT
        count = round(allowed) if given.quick else 5 * round(allowed)
        with environment({ours.WAIT: WAIT, ours.MODE: "receive_only", **settings}):
            runs = [handled(claim, count) for _ in range(given.rounds)]
        share = [each.rate / allowed for each in runs]
        beside = f"of {allowed:,.0f}/s; spread {apart(share):.0%}"
        report.bar(f"{way} that wait, {name}", median(share), 0.8, beside=beside)


def lateness(claim: Claim, count: int) -> list[float]:
    """Return the sorted lateness of *count* handlers, in milliseconds; jobs are due every 20 ms."""
    with environment({ours.SPACING: 0.02}), store_of(claim):
        _, found, _ = executed(program(claim), count, time.time() + 5 + SETTLE)
    return sorted(1_000 * each for each in found)


def handled(claim: Claim, count: int) -> Sample:
    """Return the rate of *count* handlers from the due instant on."""
    return run(program(claim), count, partial(store_of, claim))


def program(claim: Claim) -> Peer:
    """Return our program in the form of a peer."""
    return Peer("timeoutmgr_handler", claim.server, pace=claim.pace)


@contextmanager
def store_of(claim: Claim) -> Iterator[None]:
    """Make an empty store if the claim has a store beside its queues."""
    if claim.store is None:
        yield
        return
    with servers(claim.store) as running, environment({ours.STORE: running[claim.store]}):
        yield


@contextmanager
def environment(given: Mapping[str, object]) -> Iterator[None]:
    """Set the variables that have a value, for the processes of a run."""
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in given.items() if value is not None})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


QUESTIONS = {"rate": measure_rate, "lateness": measure_lateness, "waiting": measure_waiting}


if __name__ == "__main__":
    main()
