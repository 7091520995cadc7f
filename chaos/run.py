"""A run: processes, faults during the load, drain, verdict."""

import logging
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from chaos.consumer_ledger import Delivery
from chaos.environment import Environment
from chaos.failure_ledger import FAILURES, error_copies, read_failures
from chaos.fault_injector import LOST_REPLIES, FaultInjector, Restart
from chaos.incidents import Incident, counted
from chaos.judge import Evidence, JudgeVerdict, Percentiles, judge
from chaos.plan import FaultKind, plan
from chaos.processes import ChaosFailed
from chaos.producer_ledger import Fate, ProducerLedger
from chaos.resources import AWAY_ERRORS, Resources, retry_read
from chaos.roles import Roles
from chaos.screen import Progress, Screen, Silence
from chaos.settings import ChaosSettings
from chaos.supervisor import SupervisedProcess
from timeoutmgr.message.instants import Micros

logger = logging.getLogger(__name__)

_TICK: Final = 0.02
_SHOW_EVERY: Final = 1.0
_SETTLE: Final = 2.0
"""Seconds after the last arrival: a late repeat arrives within them."""


def run_chaos(
    settings: ChaosSettings,
    *,
    restart_store: Restart | None = None,
    restart_broker: Restart | None = None,
    screen: Screen[Progress] | None = None,
    keep: bool = False,
) -> JudgeVerdict:
    """Run chaos and return the verdict; its ``broken`` is empty if all promises were kept.

    *restart_store* and *restart_broker* restart a server, and return when it answers. *keep*
    keeps files, queues and tables; a broken promise keeps the files. Raises ChaosFailed if the
    run itself cannot be carried out.
    """
    restarts = {
        FaultKind.RESTART_STORE: restart_store,
        FaultKind.RESTART_BROKER: restart_broker,
    }
    given = {kind: restart for kind, restart in restarts.items() if restart is not None}
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    shown = screen or Silence()
    environment = _environment(settings, folder)
    is_clean = False
    try:
        resources = Resources(environment)
        try:
            verdict = ChaosRun(settings, environment, resources, shown, given).run()
        finally:
            resources.close() if keep else resources.clear()
        is_clean = not verdict.broken
        return verdict
    finally:
        if is_clean and not keep:
            shutil.rmtree(folder)
        else:
            shown.say(f"files and logs of this run: {folder}")


class ChaosRun:
    """A run with its own resources."""

    def __init__(
        self,
        settings: ChaosSettings,
        environment: Environment,
        resources: Resources,
        screen: Screen[Progress],
        restarts: dict[FaultKind, Restart],
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._resources = resources
        self._screen = screen
        self._restarts = restarts
        names = [f"producer-{number}" for number in range(1, settings.producers + 1)]
        self._promises = ProducerLedger([environment.file(f"{name}.jsonl") for name in names])
        self._deliveries: list[Delivery] = []
        self._dead: Mapping[str, Micros] = {}
        self._in_errors = 0
        self._begin = time.monotonic()
        self._next_progress = 0.0

    def run(self) -> JudgeVerdict:
        """Return the verdict."""
        offset = self._resources.clock_offset()
        with ExitStack() as closing:
            roles = Roles(self._settings, self._environment, closing)
            roles.start()
            injector = self._injector(roles)
            self._begin = time.monotonic()
            self._play(injector, roles)
            ended = sum(process.ended for process in (roles.consumer, *roles.workers))
            for worker in roles.workers:
                worker.stop()
            self._wait_for_the_consumer()
            roles.consumer.stop()
        gather = partial(self._evidence, injector.incidents, offset, ended)
        return judge(retry_read(gather))

    def _evidence(self, incidents: Sequence[Incident], offset: Micros, ended: int) -> Evidence:
        failures = read_failures(self._environment.file(FAILURES))
        left = self._resources.left()
        migrated = None
        if self._settings.migrate:
            migrated, left["migrations that are not over"] = self._resources.migrated(incidents)
        return Evidence(
            promises=self._promises.read(),
            deliveries=self._resources.deliveries.read_all(),
            incidents=incidents,
            left=left,
            dead=self._resources.dead(),
            failures=failures,
            errors=error_copies(self._resources.failed_messages(), failures),
            clock_offset=offset,
            exactly_once=self._environment.one_database,
            ended=ended,
            seed=self._settings.seed,
            migrated=migrated,
        )

    def _play(self, injector: FaultInjector, roles: Roles) -> None:
        producers, migration = roles.producers, roles.migration
        while not injector.is_over or self._elapsed < self._settings.seconds:
            injector.step(self._elapsed)
            self._require_well(producers)
            self._show("chaos", injector)
            time.sleep(_TICK)
        injector.calm()
        if migration is not None:
            migration.finish()
        deadline = time.monotonic() + self._settings.drain
        outstanding = self._outstanding()
        quiet_since: float | None = None
        while time.monotonic() < deadline:
            injector.step(self._elapsed)
            self._require_well(producers)
            self._show("drain", injector)
            if self._outstanding() < outstanding:
                # Slow is not lost: after a long run, a busy machine may need minutes to catch up.
                outstanding = self._outstanding()
                deadline = time.monotonic() + self._settings.drain
            is_done = all(one.code == 0 for one in producers)
            is_done = is_done and (migration is None or migration.is_finished)
            is_quiet = is_done and self._has_arrived()
            quiet_since = (quiet_since or time.monotonic()) if is_quiet else None
            if quiet_since is not None and time.monotonic() >= quiet_since + _SETTLE:
                return
            time.sleep(0.2)
        self._screen.say(f"not all has arrived, and nothing did for {self._settings.drain:g} s")

    def _has_arrived(self) -> bool:
        if self._outstanding():
            self._read()
            return False
        try:
            resources = self._resources
            return not (resources.pending() or resources.waiting() or resources.in_levels())
        except AWAY_ERRORS as error:
            logger.info("a look failed: %s", error)
            return False

    def _outstanding(self) -> int:
        arrived = {delivery.name for delivery in self._deliveries}
        there = {Fate.DELIVERED: arrived, Fate.DEAD: self._dead.keys()}
        promises = self._promises.by_name.values()
        failing = sum(promise.fate is Fate.FAILED for promise in promises)
        return max(0, failing - self._in_errors) + sum(
            promise.fate in there and promise.name not in there[promise.fate]
            for promise in promises
        )

    def _read(self) -> None:
        self._promises.read()
        try:
            self._deliveries = self._resources.deliveries.read()
            self._dead = self._resources.dead()
            self._in_errors = self._resources.in_errors()
        except AWAY_ERRORS as error:
            logger.info("a look failed: %s", error)

    def _show(self, phase: str, injector: FaultInjector) -> None:
        if self._elapsed < self._next_progress:
            return
        self._next_progress = self._elapsed + _SHOW_EVERY
        self._read()
        promises = self._promises.by_name
        late = [
            one.received_at - promises[one.name].due
            for one in self._deliveries
            if one.name in promises
        ]
        faults = counted(injector.incidents)
        self._screen.show(
            Progress(
                phase=phase,
                elapsed=self._elapsed,
                accepted=sum(promise.accepted for promise in promises.values()),
                delivered=len(self._deliveries),
                outstanding=self._outstanding(),
                kills=faults[FaultKind.KILL] + faults[FaultKind.KILL_MIGRATION],
                pauses=faults[FaultKind.PAUSE],
                cuts=sum(one.connections for one in injector.incidents),
                lost_replies=sum(faults[kind] for kind in LOST_REPLIES),
                restarts=faults[FaultKind.RESTART_STORE] + faults[FaultKind.RESTART_BROKER],
                lateness=Percentiles.of(late),
            )
        )

    def _wait_for_the_consumer(self) -> None:
        """Wait until the consumer's queue is empty: it may hold a repeat."""
        deadline = time.monotonic() + self._settings.drain
        while self._resources.waiting() and time.monotonic() < deadline:
            time.sleep(0.1)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._begin

    def _require_well(self, producers: list[SupervisedProcess]) -> None:
        for producer in producers:
            if producer.code not in (None, 0):
                raise ChaosFailed(
                    f"{producer.name} ended with code {producer.code}:\n{producer.last_words()}"
                )

    def _injector(self, roles: Roles) -> FaultInjector:
        wanted = {FaultKind.KILL} if self._settings.kills else set()
        wanted |= {FaultKind.PAUSE} if self._settings.pauses else set()
        wanted |= roles.cutters.keys()
        wanted |= self._restarts.keys()
        migration = [] if roles.migration is None else [roles.migration]
        if migration and self._settings.kills:
            wanted.add(FaultKind.KILL_MIGRATION)
        faults = plan(self._settings, wanted)
        victims = [*roles.workers, roles.consumer]
        connected = [*victims, *roles.producers, *migration]
        return FaultInjector(
            faults, victims, connected, roles.cutters, self._restarts, roles.migration
        )


def _environment(settings: ChaosSettings, folder: Path) -> Environment:
    store = settings.store or f"sqlite:///{folder / 'timeoutmgr.db'}"
    return Environment(
        folder=str(folder),
        store=store,
        broker=settings.broker or store,
        suffix=f"_{secrets.token_hex(4)}",
        claim_time=settings.claim_time,
        seed=settings.seed,
        delayed_store=settings.delayed_store,
        dead_letters=settings.dead > 0,
        levels=settings.uses_levels,
        mixed=settings.native,
        failing=settings.failing,
        awaited=settings.awaited,
        foreign=settings.share_foreign,
        split=settings.split,
    )
