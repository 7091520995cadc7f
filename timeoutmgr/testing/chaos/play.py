"""One run: processes, faults while messages keep coming, the drain, and the verdict."""

import logging
import secrets
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from timeoutmgr.instants import Micros
from timeoutmgr.testing.chaos.births import Nursery
from timeoutmgr.testing.chaos.connections import Cutter, cutter
from timeoutmgr.testing.chaos.deliveries import Delivery
from timeoutmgr.testing.chaos.incidents import counted
from timeoutmgr.testing.chaos.judge import Evidence, Percentiles, Verdict, judge
from timeoutmgr.testing.chaos.plan import FaultKind, plan
from timeoutmgr.testing.chaos.processes import ChaosFailed
from timeoutmgr.testing.chaos.promises import Fate, Promises
from timeoutmgr.testing.chaos.scene import Scene
from timeoutmgr.testing.chaos.screen import Look, Screen, Silence
from timeoutmgr.testing.chaos.settings import ChaosSettings
from timeoutmgr.testing.chaos.stage import AWAY, Stage
from timeoutmgr.testing.chaos.trouble import CUTS, LOST_REPLIES, Restart, Trouble
from timeoutmgr.testing.chaos.troupe import Part

logger = logging.getLogger(__name__)

_PACKAGE: Final = "timeoutmgr.testing.chaos"
_COMMAND_LINE: Final = "timeoutmgr.cli.main:main"
_TICK: Final = 0.02
_LOOK_EVERY: Final = 1.0
_SETTLE: Final = 2.0
"""Seconds after everything arrived: a repeat that is still on its way comes in then."""


def run_chaos(
    settings: ChaosSettings,
    *,
    restart_store: Restart | None = None,
    restart_broker: Restart | None = None,
    screen: Screen[Look] | None = None,
    keep: bool = False,
) -> Verdict:
    """Run chaos and return the verdict; its ``broken`` is empty if all promises were kept.

    *restart_store* and *restart_broker* take a server down and bring it back, and return when it
    answers. *keep* leaves files, queues and tables where they are, and so does a broken promise
    with the files. Raises ChaosFailed where the run itself cannot be carried out.
    """
    restarts = {
        FaultKind.RESTART_STORE: restart_store,
        FaultKind.RESTART_BROKER: restart_broker,
    }
    given = {kind: restart for kind, restart in restarts.items() if restart is not None}
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    shown = screen or Silence()
    scene = _scene(settings, folder)
    is_clean = False
    try:
        stage = Stage(scene)
        try:
            verdict = Play(settings, scene, stage, shown, given).run()
        finally:
            stage.close() if keep else stage.clear()
        is_clean = not verdict.broken
        return verdict
    finally:
        if is_clean and not keep:
            shutil.rmtree(folder)
        else:
            shown.say(f"files and logs of this run: {folder}")


class Play:
    """One run on a stage that nobody else uses."""

    def __init__(
        self,
        settings: ChaosSettings,
        scene: Scene,
        stage: Stage,
        screen: Screen[Look],
        restarts: dict[FaultKind, Restart],
    ) -> None:
        self._settings = settings
        self._scene = scene
        self._stage = stage
        self._screen = screen
        self._restarts = restarts
        self._cutters: dict[FaultKind, Cutter] = {}
        self._store_cutter: Cutter | None = None
        self._broker_cutter: Cutter | None = None
        self._nursery: Nursery | None = None
        names = [f"producer-{number}" for number in range(1, settings.producers + 1)]
        self._promises = Promises([scene.file(f"{name}.jsonl") for name in names])
        self._deliveries: list[Delivery] = []
        self._dead: Mapping[str, Micros] = {}
        self._begin = time.monotonic()
        self._next_look = 0.0

    def run(self) -> Verdict:
        """Return the verdict."""
        offset = self._stage.clock_offset()
        with ExitStack() as closing:
            self._cutters = self._make_cutters(closing)
            self._nursery = Nursery(self._scene.file("nursery.log"), self._scene.urls)
            closing.callback(self._nursery.close)
            consumer = self._server("consumer", "consumer:consumer")
            workers = [
                self._server(f"worker-{number}", "worker:worker")
                for number in range(1, self._settings.workers + 1)
            ]
            producers = [self._producer(n) for n in range(1, self._settings.producers + 1)]
            for part in (consumer, *workers, *producers):
                closing.callback(part.stop)
            for parts in ([consumer, *workers], producers):
                for part in parts:
                    part.start()
                for part in parts:
                    part.wait_until_ready()
            trouble = self._trouble([*workers, consumer], producers)
            self._begin = time.monotonic()
            self._play(trouble, producers)
            ended = sum(part.ended for part in (consumer, *workers))
            for worker in workers:
                worker.stop()
            self._wait_for_the_consumer()
            consumer.stop()
        evidence = Evidence(
            promises=self._promises.read(),
            deliveries=self._stage.deliveries.read_all(),
            incidents=trouble.incidents,
            left=self._stage.left(),
            dead=self._stage.dead(),
            clock_offset=offset,
            exactly_once=self._scene.one_database,
            ended=ended,
            seed=self._settings.seed,
        )
        return judge(evidence)

    def _play(self, trouble: Trouble, producers: list[Part]) -> None:
        while not trouble.is_over or self._elapsed < self._settings.seconds:
            trouble.step(self._elapsed)
            self._require_well(producers)
            self._look("chaos", trouble)
            time.sleep(_TICK)
        trouble.calm()
        deadline = time.monotonic() + self._settings.drain
        outstanding = self._outstanding()
        quiet_since: float | None = None
        while time.monotonic() < deadline:
            trouble.step(self._elapsed)
            self._require_well(producers)
            self._look("drain", trouble)
            if self._outstanding() < outstanding:
                # Slow is not lost: a long run on a busy machine may have a lot to make up for.
                outstanding = self._outstanding()
                deadline = time.monotonic() + self._settings.drain
            is_quiet = all(one.code == 0 for one in producers) and self._has_arrived()
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
            return not self._stage.pending() and not self._stage.waiting()
        except AWAY as error:
            logger.info("a look failed: %s", error)
            return False

    def _outstanding(self) -> int:
        arrived = {delivery.name for delivery in self._deliveries}
        there = {Fate.DELIVERED: arrived, Fate.DEAD: self._dead.keys()}
        return sum(
            promise.fate in there and promise.name not in there[promise.fate]
            for promise in self._promises.by_name.values()
        )

    def _read(self) -> None:
        self._promises.read()
        try:
            self._deliveries = self._stage.deliveries.read()
            self._dead = self._stage.dead()
        except AWAY as error:
            logger.info("a look failed: %s", error)

    def _look(self, phase: str, trouble: Trouble) -> None:
        if self._elapsed < self._next_look:
            return
        self._next_look = self._elapsed + _LOOK_EVERY
        self._read()
        promises = self._promises.by_name
        late = [
            one.received_at - promises[one.name].due
            for one in self._deliveries
            if one.name in promises
        ]
        faults = counted(trouble.incidents)
        self._screen.show(
            Look(
                phase=phase,
                elapsed=self._elapsed,
                accepted=sum(promise.accepted for promise in promises.values()),
                delivered=len(self._deliveries),
                outstanding=self._outstanding(),
                kills=faults[FaultKind.KILL],
                pauses=faults[FaultKind.PAUSE],
                cuts=sum(one.connections for one in trouble.incidents),
                lost_replies=sum(faults[kind] for kind in LOST_REPLIES),
                restarts=faults[FaultKind.RESTART_STORE] + faults[FaultKind.RESTART_BROKER],
                lateness=Percentiles.of(late),
            )
        )

    def _wait_for_the_consumer(self) -> None:
        """Let the consumer take what is still in its queue: a repeat would be there."""
        deadline = time.monotonic() + self._settings.drain
        while self._stage.waiting() and time.monotonic() < deadline:
            time.sleep(0.1)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._begin

    def _require_well(self, producers: list[Part]) -> None:
        for producer in producers:
            if producer.code not in (None, 0):
                raise ChaosFailed(
                    f"{producer.name} ended with code {producer.code}:\n{producer.last_words()}"
                )

    def _trouble(self, victims: list[Part], producers: list[Part]) -> Trouble:
        wanted = {FaultKind.KILL} if self._settings.kills else set()
        wanted |= {FaultKind.PAUSE} if self._settings.pauses else set()
        wanted |= self._cutters.keys()
        wanted |= self._restarts.keys()
        faults = plan(self._settings, wanted)
        connected = [*victims, *producers]
        return Trouble(faults, victims, connected, self._cutters, self._restarts)

    def _make_cutters(self, closing: ExitStack) -> dict[FaultKind, Cutter]:
        wanted = CUTS if self._settings.cuts else frozenset()
        wanted |= LOST_REPLIES if self._settings.lost_replies else frozenset()
        # Without such faults nothing stands between a process and its servers.
        self._store_cutter = self._cutter(self._scene.store, wanted, closing)
        if not self._scene.one_database:
            self._broker_cutter = self._cutter(self._scene.broker, wanted, closing)
        of_store = {FaultKind.CUT_STORE, FaultKind.LOSE_COMMIT} & wanted
        of_broker = {FaultKind.CUT_BROKER, FaultKind.LOSE_CONFIRM} & wanted
        made = dict.fromkeys(of_store, self._store_cutter)
        made |= dict.fromkeys(of_broker, self._broker_cutter)
        return {kind: found for kind, found in made.items() if found is not None}

    def _cutter(self, url: str, wanted: Collection[FaultKind], closing: ExitStack) -> Cutter | None:
        found = cutter(url) if wanted else None
        if found is not None:
            closing.callback(found.close)
        return found

    def _server(self, name: str, app: str) -> Part:
        ready = self._scene.file(f"{name}.health")
        run = ["run", "--health-file", str(ready)]
        return self._part(name, _COMMAND_LINE, ["--app", f"{_PACKAGE}.{app}", *run], ready)

    def _producer(self, number: int) -> Part:
        settings = self._settings
        load = (
            number,
            settings.seconds,
            settings.rate / settings.producers,
            settings.longest_delay,
            settings.share_cancelled,
            settings.dead,
        )
        name = f"producer-{number}"
        return self._part(
            name, f"{_PACKAGE}.producer:main", [*map(str, load)], self._scene.file(f"{name}.jsonl")
        )

    def _part(self, name: str, entry: str, arguments: list[str], ready: Path) -> Part:
        assert self._nursery is not None, "it is there before anybody is born"
        scene = self._scene_of(name)
        return Part(
            name=name,
            nursery=self._nursery,
            entry=entry,
            arguments=arguments,
            scene=scene.save(name),
            log=scene.file(f"{name}.log"),
            ready=ready,
        )

    def _scene_of(self, name: str) -> Scene:
        """Return the scene with the URLs that the process *name* is to use."""
        store, broker = self._scene.store, self._scene.broker
        if self._store_cutter is not None:
            store = self._store_cutter.url(name)
        if self._scene.one_database:
            broker = store
        elif self._broker_cutter is not None:
            broker = self._broker_cutter.url(name)
        return replace(self._scene, store=store, broker=broker)


def _scene(settings: ChaosSettings, folder: Path) -> Scene:
    store = settings.store or f"sqlite:///{folder / 'timeoutmgr.db'}"
    return Scene(
        folder=str(folder),
        store=store,
        broker=settings.broker or store,
        suffix=f"_{secrets.token_hex(4)}",
        claim_time=settings.claim_time,
        seed=settings.seed,
        delayed_store=settings.delayed_store,
        dead_letters=settings.dead > 0,
    )
