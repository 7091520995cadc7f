"""One run: processes, faults while messages keep coming, the drain, and the verdict."""

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

from timeoutmgr.instants import Micros
from timeoutmgr.testing.chaos.cast import Cast
from timeoutmgr.testing.chaos.deliveries import Delivery
from timeoutmgr.testing.chaos.incidents import Incident, counted
from timeoutmgr.testing.chaos.judge import Evidence, Percentiles, Verdict, judge
from timeoutmgr.testing.chaos.plan import FaultKind, plan
from timeoutmgr.testing.chaos.processes import ChaosFailed
from timeoutmgr.testing.chaos.promises import Fate, Promises
from timeoutmgr.testing.chaos.scene import Scene
from timeoutmgr.testing.chaos.screen import Look, Screen, Silence
from timeoutmgr.testing.chaos.settings import ChaosSettings
from timeoutmgr.testing.chaos.stage import AWAY, Stage, looked
from timeoutmgr.testing.chaos.trouble import LOST_REPLIES, Restart, Trouble
from timeoutmgr.testing.chaos.troupe import Part

logger = logging.getLogger(__name__)

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
            cast = Cast(self._settings, self._scene, closing)
            cast.start()
            trouble = self._trouble(cast)
            self._begin = time.monotonic()
            self._play(trouble, cast)
            ended = sum(part.ended for part in (cast.consumer, *cast.workers))
            for worker in cast.workers:
                worker.stop()
            self._wait_for_the_consumer()
            cast.consumer.stop()
        look = partial(self._evidence, trouble.incidents, offset, ended)
        return judge(looked(look))

    def _evidence(self, incidents: Sequence[Incident], offset: Micros, ended: int) -> Evidence:
        left = self._stage.left()
        migrated = None
        if self._settings.migrate:
            migrated, left["migrations that are not over"] = self._stage.migrated(incidents)
        return Evidence(
            promises=self._promises.read(),
            deliveries=self._stage.deliveries.read_all(),
            incidents=incidents,
            left=left,
            dead=self._stage.dead(),
            clock_offset=offset,
            exactly_once=self._scene.one_database,
            ended=ended,
            seed=self._settings.seed,
            migrated=migrated,
        )

    def _play(self, trouble: Trouble, cast: Cast) -> None:
        producers, migration = cast.producers, cast.migration
        while not trouble.is_over or self._elapsed < self._settings.seconds:
            trouble.step(self._elapsed)
            self._require_well(producers)
            self._look("chaos", trouble)
            time.sleep(_TICK)
        trouble.calm()
        if migration is not None:
            migration.finish()
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
            stage = self._stage
            return not (stage.pending() or stage.waiting() or stage.in_levels())
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
                kills=faults[FaultKind.KILL] + faults[FaultKind.KILL_MIGRATION],
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

    def _trouble(self, cast: Cast) -> Trouble:
        wanted = {FaultKind.KILL} if self._settings.kills else set()
        wanted |= {FaultKind.PAUSE} if self._settings.pauses else set()
        wanted |= cast.cutters.keys()
        wanted |= self._restarts.keys()
        migration = [] if cast.migration is None else [cast.migration]
        if migration and self._settings.kills:
            wanted.add(FaultKind.KILL_MIGRATION)
        faults = plan(self._settings, wanted)
        victims = [*cast.workers, cast.consumer]
        connected = [*victims, *cast.producers, *migration]
        return Trouble(faults, victims, connected, cast.cutters, self._restarts, cast.migration)


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
        levels=settings.uses_levels,
        mixed=settings.native,
    )
