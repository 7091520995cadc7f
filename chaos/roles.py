"""Roles of a run: its processes, each with its own URLs."""

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from chaos.connections import Cutter, cutter
from chaos.environment import Environment
from chaos.fault_injector import CUTS, LOST_REPLIES
from chaos.forkserver_client import ForkServer
from chaos.migration import Migration
from chaos.plan import FaultKind
from chaos.settings import ChaosSettings
from chaos.supervisor import SupervisedProcess

_PACKAGE: Final = "chaos"
_MODULES: Final = (
    *(f"{_PACKAGE}.worker", f"{_PACKAGE}.consumer", f"{_PACKAGE}.producer"),
    "timeoutmgr.cli.migrate.command",
)
_COMMAND_LINE: Final = "timeoutmgr.cli.main:main"


class Roles:
    """The processes of a run, not yet started; the proxies before their servers are open.

    In a mixed fleet every second worker and producer belongs to the endpoint with native delays.
    """

    def __init__(
        self, settings: ChaosSettings, environment: Environment, closing: ExitStack
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._store_cutter: Cutter | None = None
        self._broker_cutter: Cutter | None = None
        self.cutters: Final = self._make_cutters(closing)
        modules = [*_MODULES, *environment.drivers]
        self._fork_server: Final = ForkServer(environment.file("forkserver.log"), modules)
        closing.callback(self._fork_server.close)
        self.consumer: Final = self._server("consumer", "consumer:consumer", natively=False)
        self.workers: Final = [self._worker(n) for n in range(1, settings.workers + 1)]
        self.producers: Final = [self._producer(n) for n in range(1, settings.producers + 1)]
        self.migration: Final = self._migration() if settings.migrate else None
        for process in (self.consumer, *self.workers, *self.producers):
            closing.callback(process.stop)
        if self.migration is not None:
            closing.callback(self.migration.stop)

    def start(self) -> None:
        """Start all processes; return when they work."""
        for processes in ([self.consumer, *self.workers], self.producers):
            for process in processes:
                process.start()
            for process in processes:
                process.wait_until_ready()
        if self.migration is not None:
            self.migration.start()

    def _make_cutters(self, closing: ExitStack) -> dict[FaultKind, Cutter]:
        wanted = CUTS if self._settings.cuts else frozenset()
        wanted |= LOST_REPLIES if self._settings.lost_replies else frozenset()
        # Without such faults, no proxy stands between a process and its servers.
        self._store_cutter = self._cutter(self._environment.store, wanted, closing)
        if not self._environment.one_database:
            self._broker_cutter = self._cutter(self._environment.broker, wanted, closing)
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

    def _worker(self, number: int) -> SupervisedProcess:
        natively = self._is_native(number)
        name = f"{'native' if natively else 'worker'}-{number}"
        return self._server(name, "worker:worker", natively=natively)

    def _server(self, name: str, app: str, *, natively: bool) -> SupervisedProcess:
        ready = self._environment.file(f"{name}.health")
        arguments = ["--app", f"{_PACKAGE}.{app}", "run", "--health-file", str(ready)]
        return SupervisedProcess(
            **self._process(name, _COMMAND_LINE, natively, ready), arguments=arguments
        )

    def _producer(self, number: int) -> SupervisedProcess:
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
        ready, natively = self._environment.file(f"{name}.jsonl"), self._is_native(number)
        made = self._process(name, f"{_PACKAGE}.producer:main", natively, ready)
        return SupervisedProcess(**made, arguments=[*map(str, load)])

    def _migration(self) -> Migration:
        made = self._process(
            "migration", _COMMAND_LINE, False, self._environment.file("migration.log")
        )
        return Migration(**made, app=f"{_PACKAGE}.worker:worker", seed=self._settings.seed)

    def _process(self, name: str, entry: str, natively: bool, ready: Path) -> dict[str, Any]:
        return {
            "name": name,
            "fork_server": self._fork_server,
            "entry": entry,
            "environment": self._environment_of(name, natively).save(name),
            "log": self._environment.file(f"{name}.log"),
            "ready": ready,
        }

    def _is_native(self, number: int) -> bool:
        return self._environment.mixed and number % 2 == 0

    def _environment_of(self, name: str, natively: bool) -> Environment:
        """Return the environment with the URLs of the process *name*."""
        store, broker = self._environment.store, self._environment.broker
        if self._store_cutter is not None:
            store = self._store_cutter.url(name)
        if self._environment.one_database:
            broker = store
        elif self._broker_cutter is not None:
            broker = self._broker_cutter.url(name)
        return replace(self._environment, store=store, broker=broker, sends_natively=natively)
