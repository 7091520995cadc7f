"""Incidents, as a real Prometheus sees them: each alert fires, and ends with its cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chaos.forkserver_client import ForkServer
from tests.cli.programs import Folder, Program
from tests.deploy.scaled import SCALE, rules
from tests.persistence.making import SECOND, timeout
from tests.services.processes import free_port
from tests.services.prometheus import PrivatePrometheus
from tests.support.waiting import eventually
from timeoutmgr.clock import SystemClock
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.testing.faultproxy import FaultProxy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        bool(PrivatePrometheus.missing_programs()),
        reason="prometheus is not installed: apt-get install prometheus",
    ),
]
PATIENCE = 60.0
"""Seconds that a busy machine may take until an alert fires, or ends."""
WORKER = """\
from datetime import timedelta
from pathlib import Path

from timeoutmgr import EndpointConfiguration, RecoverabilitySettings
from timeoutmgr.clock import SystemClock
from timeoutmgr.metrics import exposition, samples
from timeoutmgr.satellites import TimeoutManager, housekeeping

samples.EVERY /= {scale}
samples.COUNT_EVERY /= {scale}
exposition.FRESH /= {scale}
housekeeping._EVERY /= {scale}


class Clock(SystemClock):
    def now(self):
        return super().now() + 40_000_000 * Path("clock-apart").exists()


config = EndpointConfiguration("{name}")
config.clock = Clock()
config.use_transport("{url}")
config.use_persistence("{url}")
config.critical_error_action = "log"
config.recoverability = RecoverabilitySettings(immediate=1, delayed=0)
config.enable_feature(
    TimeoutManager(
        time_to_wait_before_critical_error=timedelta(seconds=1),
        poll_interval=timedelta(seconds=1),
    )
)


@config.handler("Note")
def note(message, context):
    pass


@config.handler("Poison")
def poison(message, context):
    raise ValueError("poison")


billing = EndpointConfiguration("{name}-billing")
billing.use_transport("{url}")
billing.add_handler("Note", note)

sink = EndpointConfiguration("{name}-sink")
sink.use_transport("{url}")
sink.add_handler("Note", note)
"""


class Drill:
    """An endpoint, the server that it needs, and the Prometheus that watches it."""

    def __init__(self, folder: Folder, database: FaultProxy, url: str) -> None:
        self.folder = folder
        self.database = database
        self.billing = f"{folder.endpoint}-billing"
        self._url = url
        self._port = free_port()
        worker = WORKER.format(scale=SCALE, name=folder.endpoint, url=database.url(url))
        folder.write("worker.py", worker)
        for app in ("config", "billing", "sink"):
            assert folder.run("--app", f"worker:{app}", "install").returncode == 0
        target = f"127.0.0.1:{self._port}"
        self.prometheus = PrivatePrometheus(folder.path / "prometheus", target, rules())

    def start_worker(self) -> Program:
        address = f"127.0.0.1:{self._port}"
        program = self.folder.start("run", "--app", "worker:config", "--metrics-address", address)
        program.wait_for("runs")
        return program

    def command(self, *arguments: str) -> None:
        done = self.folder.run("--app", "worker:config", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    def send(self, queue: str, message_type: str, delay: str) -> None:
        self.command("send", queue, message_type, "{}", "--delay", delay)

    def spike(self, number: int, ahead: int = 1) -> None:
        """Store *number* of timeouts that become due at one instant, seconds *ahead*."""
        with closing(SqlPersistence(self._url)) as persistence:
            store = persistence.timeouts(self.folder.endpoint, SystemClock())
            due = store.now() + ahead * SECOND
            queue = f"{self.folder.endpoint}-sink"
            store.store_many(
                [timeout(f"{due}-{at}", due, destination=queue, body=b"{}") for at in range(number)]
            )

    def until_firing(self, *alerts: str) -> None:
        seen: set[str] = set()

        def all_seen() -> bool:
            seen.update(self.prometheus.firing())
            return seen >= {*alerts}

        self._eventually(all_seen, alerts)

    def until_sampled(self, expression: str) -> None:
        self._eventually(lambda: self.prometheus.query(expression), expression)

    def until_green(self) -> None:
        self._eventually(lambda: not self.prometheus.firing(), "nothing fires")

    def _eventually(self, holds: Callable[[], object], what: object) -> None:
        eventually(holds, f"{what}; firing: {sorted(self.prometheus.firing())}", PATIENCE)

    def fired(self, *alerts: str) -> bool:
        """Return whether one of *alerts* has fired since the start."""
        names = "|".join(alerts)
        which = f'ALERTS{{alertname=~"{names}", alertstate="firing"}}'
        return bool(self.prometheus.query(f"count_over_time({which}[1h])"))


@pytest.fixture
def drill(
    tmp_path: Path,
    unique: str,
    postgres_url: str,
    fork_server: ForkServer,
) -> Iterator[Drill]:
    folder = Folder(tmp_path, unique, fork_server)
    with FaultProxy.before(postgres_url) as database:
        made = Drill(folder, database, postgres_url)
        try:
            yield made
        finally:
            made.prometheus.remove()
            folder.close()


def test_an_outage_of_the_storage_raises_its_alerts_and_all_is_green_after_it(
    drill: Drill,
) -> None:
    worker = watched(drill)

    storage_is_away_for_longer_than_the_limit(drill)

    assert worker.process.poll() is None


@pytest.mark.drill
def test_each_incident_raises_its_alert_and_its_remedy_ends_it_without_a_restart(
    drill: Drill,
) -> None:
    worker = watched(drill)
    # No incident: its timeout is overdue from here on.
    drill.command("pause", drill.billing, "--reason", "drill")
    drill.send(drill.billing, "Note", "100ms")

    poison_type_and_clock_apart(drill)
    assert not drill.fired("TimeoutsStuck", "TimeoutsBehind", "BreakerTriggered", "NoProcess")
    storage_is_away_for_longer_than_the_limit(drill)
    spike_at_one_instant(drill)
    assert worker.process.poll() is None
    dead_process(drill, worker)

    drill.command("resume", drill.billing)
    drill.until_green()


def watched(drill: Drill) -> Program:
    """Return a worker that Prometheus has seen in order."""
    worker = drill.start_worker()
    drill.prometheus.start()
    drill.until_sampled("timeoutmgr_moved_to_error_total == 0")
    drill.until_green()
    return worker


def poison_type_and_clock_apart(drill: Drill) -> None:
    apart = drill.folder.path / "clock-apart"
    drill.send(drill.folder.endpoint, "Poison", "100ms")
    drill.until_firing("ErrorQueueGrows")
    apart.touch()
    drill.until_firing("ClockApart")
    apart.unlink()
    drill.until_green()


def storage_is_away_for_longer_than_the_limit(drill: Drill) -> None:
    drill.spike(1, ahead=5)
    drill.until_sampled("timeoutmgr_next_due_timestamp_seconds - time() < 6")
    drill.database.refuse()
    drill.database.reset()
    drill.until_firing("BreakerTriggered", "TimeoutsStuck", "StoreSilent")
    drill.database.heal()
    drill.until_green()


def spike_at_one_instant(drill: Drill) -> None:
    drill.database.slow(0.1)
    drill.spike(3_000)
    drill.until_firing("LatenessHigh")
    drill.database.heal()
    drill.until_green()


def dead_process(drill: Drill, worker: Program) -> None:
    worker.process.kill()
    drill.until_firing("NoProcess")
    drill.start_worker()  # the one incident whose remedy is a start
    drill.until_green()
