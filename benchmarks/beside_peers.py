"""The same work with other products: jobs due at one instant; seconds until the last has run."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path

from harness import machine
from harness.figures import Sample, interleave, ratio, say
from harness.report import Report, options, parsed
from harness.runs import drained
from harness.servers import servers
from harness.workers import installed
from peers import job

PACKAGES = ("celery", "dramatiq", "huey", "procrastinate", "pgqueuer", "APScheduler")
SETTLE = 5.0
OURS = "timeoutmgr, RabbitMQ + PostgreSQL"


@dataclass(frozen=True)
class Peer:
    """A program in the folder ``peers``, its job store, and our claim about its rate."""

    module: str
    server: str
    bar: float | None = None
    pace: int = 1000
    """Jobs a second that the peer surely accepts; all must be accepted before they are due."""
    worker_first: bool = True
    batch: int | None = None


PEERS = {
    "Celery ETA, RabbitMQ": Peer("celery_eta", "rabbitmq", 4, pace=350),
    "Celery ETA, Redis": Peer("celery_eta", "redis", 4),
    "dramatiq, RabbitMQ": Peer("dramatiq_delay", "rabbitmq", pace=600),
    "huey, SQLite": Peer("huey_eta", "sqlite", pace=700),
    "APScheduler 3, PostgreSQL": Peer("apscheduler_date", "postgres", 4, 300, worker_first=False),
    "procrastinate": Peer("procrastinate_at", "postgres", 30),
    "pgqueuer, default": Peer("pgqueuer_after", "postgres", 4, pace=2000),
    "pgqueuer, batch 200": Peer("pgqueuer_after", "postgres", 0.5, pace=2000, batch=200),
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=[*PEERS], action="append", help="these peers; repeatable")
    parser.add_argument("--slow", type=int, help="jobs for procrastinate, by its rate (a fourth)")
    given = parsed(parser, count=20_000, quick=1_000)
    peers = {name: peer for name, peer in PEERS.items() if name in (given.only or PEERS)}
    with (
        servers("postgres", "rabbitmq") as running,
        installed(running["rabbitmq"], running["postgres"]) as spec,
    ):
        versions = {name: metadata.version(name) for name in PACKAGES}
        settings = {"messages": given.count, "body": "512 B", **running.settings, **versions}
        report = Report("Beside others, due at one instant", settings)
        cases = {OURS: partial(drained, spec, given.count)}
        for name, peer in peers.items():
            # procrastinate needs minutes where other libraries need seconds; its rate is even.
            few = given.slow or given.count // 4
            count = few if peer.module == "procrastinate_at" else given.count
            cases[name] = partial(run, peer, count)
        samples = interleave(cases, given.rounds, warm_up=False)
    report.runs(samples)
    for name, peer in peers.items():
        if peer.bar is None:
            report.fact(f"ours ÷ {name}", ratio(samples[OURS], samples[name]), " times")
        else:
            report.faster(f"ours ÷ {name}", samples[OURS], samples[name], peer.bar)
    report.give(given)


def run(
    peer: Peer, count: int, place: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Sample:
    """Make *peer* accept and execute *count* jobs; return its rate from the due instant on.

    *place* is entered for each attempt: a second attempt finds no data of the first.
    """
    due = time.time() + count / peer.pace + SETTLE + (5 if peer.worker_first else 0)
    with place():
        accepted, found, cpu = executed(peer, count, due)
    if accepted > due - 1:
        say(f"{peer.module} accepted too slowly; once more with more time")
        return run(replace(peer, pace=peer.pace // 2), count, place)
    if (early := due - min(found)) > 0:
        say(f"{peer.module}: the first job ran {early:.3f} s early")
    return Sample(count, max(found) - due, cpu)


def executed(peer: Peer, count: int, due: float) -> tuple[float, list[float], float]:
    """Make *peer* execute *count* jobs; return the time of acceptance, the records and the CPU.

    The CPU time is that of the worker's processes, from just before the due instant on.
    """
    with tempfile.TemporaryDirectory(prefix="tmbench-") as folder, own(peer, folder) as place:
        tally = Path(folder, "tally")
        tally.touch()
        asked = [place, str(count), str(due), str(tally)]
        environment = {**os.environ, job.TALLY: str(tally)}
        if peer.batch is not None:
            environment["BENCH_PGQUEUER_BATCH"] = str(peer.batch)
        with Program(peer, asked, environment, Path(folder, "output.txt")) as program:
            if peer.worker_first:
                program.start()
                time.sleep(5)
            program.accept()
            accepted = time.time()
            if not peer.worker_first:
                program.start()
            time.sleep(max(0.0, due - 0.1 - time.time()))
            before = program.cpu_seconds()
            while len(found := job.noted(tally)) < count:
                if time.time() > due + 60 + count / 50:
                    raise TimeoutError(f"{peer.module} executed {len(found)} of {count}")
                time.sleep(0.1)
            cpu = program.cpu_seconds() - before
    return accepted, found, cpu


class Program:
    """The two processes of a peer: the first accepts, the second works until it is killed."""

    def __init__(
        self, peer: Peer, asked: list[str], environment: dict[str, str], output: Path
    ) -> None:
        self._command = [sys.executable, "-m", f"peers.{peer.module}"]
        self._asked = asked
        self._output = output
        self._environment = environment
        self._worker: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._worker is not None:
            os.killpg(self._worker.pid, signal.SIGKILL)
            self._worker.wait()
        if kind is not None:
            say(self._output.read_text()[-2000:])

    def start(self) -> None:
        self._worker = self._run("work")

    def cpu_seconds(self) -> float:
        """Return the processor time of the worker and of the processes that it started."""
        assert self._worker is not None
        return machine.session_cpu_seconds(self._worker.pid)

    def accept(self) -> None:
        if self._run("accept").wait():
            raise RuntimeError(f"{self._command} could not schedule its jobs")

    def _run(self, what: str) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            return subprocess.Popen(
                [*self._command, what, *self._asked],
                env=self._environment,
                cwd=Path(__file__).parent,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


@contextmanager
def own(peer: Peer, folder: str) -> Iterator[str]:
    """Yield an empty place for *peer*: a virtual host, a database or a file only for this run."""
    if peer.server == "sqlite":
        yield f"sqlite:///{folder}/huey.db"
        return
    with servers(peer.server) as running:
        yield running[peer.server]


if __name__ == "__main__":
    main()
