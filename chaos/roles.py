"""Who takes part in a run: its processes, each with the URLs that it is to use."""

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from timeoutmgr.testing.chaos.births import Nursery
from timeoutmgr.testing.chaos.connections import Cutter, cutter
from timeoutmgr.testing.chaos.migration import Migration
from timeoutmgr.testing.chaos.plan import FaultKind
from timeoutmgr.testing.chaos.scene import Scene
from timeoutmgr.testing.chaos.settings import ChaosSettings
from timeoutmgr.testing.chaos.trouble import CUTS, LOST_REPLIES
from timeoutmgr.testing.chaos.troupe import Part

_PACKAGE: Final = "timeoutmgr.testing.chaos"
_COMMAND_LINE: Final = "timeoutmgr.cli.main:main"


class Cast:
    """The processes of one run, none of them started; what stands before their servers is open.

    In a mixed fleet every second worker and producer is of the endpoint with native delays.
    """

    def __init__(self, settings: ChaosSettings, scene: Scene, closing: ExitStack) -> None:
        self._settings = settings
        self._scene = scene
        self._store_cutter: Cutter | None = None
        self._broker_cutter: Cutter | None = None
        self.cutters: Final = self._make_cutters(closing)
        self._nursery: Final = Nursery(scene.file("nursery.log"), scene.urls)
        closing.callback(self._nursery.close)
        self.consumer: Final = self._server("consumer", "consumer:consumer", natively=False)
        self.workers: Final = [self._worker(n) for n in range(1, settings.workers + 1)]
        self.producers: Final = [self._producer(n) for n in range(1, settings.producers + 1)]
        self.migration: Final = self._migration() if settings.migrate else None
        for part in (self.consumer, *self.workers, *self.producers):
            closing.callback(part.stop)
        if self.migration is not None:
            closing.callback(self.migration.stop)

    def start(self) -> None:
        """Start all of them; return when they work."""
        for parts in ([self.consumer, *self.workers], self.producers):
            for part in parts:
                part.start()
            for part in parts:
                part.wait_until_ready()
        if self.migration is not None:
            self.migration.start()

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

    def _worker(self, number: int) -> Part:
        natively = self._is_native(number)
        name = f"{'native' if natively else 'worker'}-{number}"
        return self._server(name, "worker:worker", natively=natively)

    def _server(self, name: str, app: str, *, natively: bool) -> Part:
        ready = self._scene.file(f"{name}.health")
        arguments = ["--app", f"{_PACKAGE}.{app}", "run", "--health-file", str(ready)]
        return Part(**self._part(name, _COMMAND_LINE, natively, ready), arguments=arguments)

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
        ready, natively = self._scene.file(f"{name}.jsonl"), self._is_native(number)
        made = self._part(name, f"{_PACKAGE}.producer:main", natively, ready)
        return Part(**made, arguments=[*map(str, load)])

    def _migration(self) -> Migration:
        made = self._part("migration", _COMMAND_LINE, False, self._scene.file("migration.log"))
        return Migration(**made, app=f"{_PACKAGE}.worker:worker", seed=self._settings.seed)

    def _part(self, name: str, entry: str, natively: bool, ready: Path) -> dict[str, Any]:
        return {
            "name": name,
            "nursery": self._nursery,
            "entry": entry,
            "scene": self._scene_of(name, natively).save(name),
            "log": self._scene.file(f"{name}.log"),
            "ready": ready,
        }

    def _is_native(self, number: int) -> bool:
        return self._scene.mixed and number % 2 == 0

    def _scene_of(self, name: str, natively: bool) -> Scene:
        """Return the scene with the URLs that the process *name* is to use."""
        store, broker = self._scene.store, self._scene.broker
        if self._store_cutter is not None:
            store = self._store_cutter.url(name)
        if self._scene.one_database:
            broker = store
        elif self._broker_cutter is not None:
            broker = self._broker_cutter.url(name)
        return replace(self._scene, store=store, broker=broker, sends_natively=natively)
