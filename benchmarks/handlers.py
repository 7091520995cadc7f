"""What a user feels: seconds from the due instant until the own function has run, beside peers.

Each case executes one function that notes the time, in one worker process: jobs due at one instant.
The rate counts from that instant until the function has run for the last job.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata

from beside_peers import PACKAGES, PEERS, Peer, run
from harness.figures import Sample, interleave
from harness.report import Report, options, parsed
from harness.servers import servers
from peers import timeoutmgr_handler as ours


@dataclass(frozen=True)
class Claim:
    """A stand of ours, the peer that does the same job, and the least ratio of their rates."""

    server: str
    peer: str
    bar: float
    store: str | None = None
    """The server of the timeouts, if it is not that of the queues."""
    share: int = 1
    """The part of ``--count`` that suffices: a slow peer needs minutes for all."""
    pace: int = 2000


CLAIMS = {
    "one PostgreSQL": Claim("postgres", "pgqueuer, batch 200", 0.7),
    "one SQLite file": Claim("sqlite", "huey, SQLite", 1.5, share=3, pace=1000),
    "RabbitMQ + PostgreSQL": Claim("rabbitmq", "Celery ETA, RabbitMQ", 5, store="postgres"),
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=[*CLAIMS], action="append", help="these; repeatable")
    parser.add_argument("--alone", action="store_true", help="without the peers, for a look")
    parser.add_argument("--threads", type=int, help="threads of handlers (the default of users)")
    parser.add_argument("--mode", help="transaction mode (the default of users)")
    given = parsed(parser, count=20_000, quick=1_000)
    claims = {name: CLAIMS[name] for name in given.only or CLAIMS}
    versions = {} if given.alone else {name: metadata.version(name) for name in PACKAGES}
    settings = {"messages": given.count, "body": "512 B", **versions}
    report = Report("Until the own function has run", settings)
    with environment({ours.THREADS: given.threads, ours.MODE: given.mode}):
        for name, claim in claims.items():
            count = given.count // claim.share
            cases = {f"ours, {name}": partial(handled, claim, count)}
            if not given.alone:
                cases[claim.peer] = partial(run, PEERS[claim.peer], count)
            samples = interleave(cases, given.rounds, warm_up=False)
            report.runs(samples)
            if not given.alone:
                both = samples.values()
                report.faster(f"handler executed, {name} ÷ {claim.peer}", *both, claim.bar)
    report.give(given)


def handled(claim: Claim, count: int) -> Sample:
    """Return how fast *count* handlers ran from the due instant."""
    peer = Peer("timeoutmgr_handler", claim.server, pace=claim.pace)
    if claim.store is None:
        return run(peer, count)
    with servers(claim.store) as running, environment({ours.STORE: running[claim.store]}):
        return run(peer, count)


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


if __name__ == "__main__":
    main()
