"""An endpoint in a separate process, which reports counts, rates and cost."""

import multiprocessing
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from timeoutmgr import DelayedDeliverySettings, Endpoint, EndpointConfiguration
from timeoutmgr.endpoint.configuration import persistence_from_url
from timeoutmgr.metrics.observer import Observer
from timeoutmgr.metrics.server import serving
from timeoutmgr.persistence import SqlDelayedMessageStore
from timeoutmgr.persistence.sql import SqlSettings
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.telemetry import Counters, Telemetry

from .figures import Sample
from .messages import create_queues, delete_queues, transport_of

_SPAWN = multiprocessing.get_context("spawn")  # a fork would inherit threads and connections


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The endpoint of a worker; None leaves a setting at its default."""

    name: str
    transport: str
    persistence: str
    chunk: int | None = None
    store_batch: int | None = None
    portable: bool = False
    """Whether the store uses no features that only PostgreSQL has."""
    delayed: bool = False
    """Whether a delayed message store in *persistence* takes the place of the timeout manager."""
    observed: bool = False
    """Whether metrics are counted, sampled and served, as by ``run --metrics-address``."""
    profile: str | None = None
    """File into which py-spy, if installed, writes the sampled stacks."""

    @property
    def destination(self) -> str:
        return f"{self.name}.destination"


def configuration(spec: Spec, telemetry: Telemetry | None = None) -> EndpointConfiguration:
    """Return the configuration of *spec*'s endpoint."""
    config = EndpointConfiguration(spec.name)
    config.error_queue = f"{spec.name}.error"
    if telemetry is not None:
        config.telemetry = telemetry
    if spec.delayed:
        store = DelayedDeliverySettings(SqlDelayedMessageStore(spec.persistence))
        transport = transport_of(spec.transport)
        config.use_transport(transport, delayed_delivery=store, accept_loss=True)
        return config
    config.use_transport(transport_of(spec.transport), accept_loss=True)
    options: dict[str, Any] = {}
    if spec.portable and "copy" in {each.name for each in fields(SqlSettings)}:
        options["settings"] = SqlSettings(copy=False)
    config.use_persistence(persistence_from_url(spec.persistence, **options))
    given = {"chunk": spec.chunk, "store_batch": spec.store_batch}
    config.enable_feature(TimeoutManager(**{k: v for k, v in given.items() if v is not None}))
    return config


@contextmanager
def installed(transport: str, persistence: str, **settings: Any) -> Iterator[Spec]:
    """Yield a new endpoint, with its queues and tables; remove the queues."""
    name = f"bench{secrets.token_hex(3)}"
    spec = Spec(name=name, transport=transport, persistence=persistence, **settings)
    endpoint = Endpoint(configuration(spec))
    queues = [*endpoint.install(), spec.destination]
    endpoint.close()
    create_queues(transport, spec.destination)
    try:
        yield spec
    finally:
        delete_queues(transport, *queues)


def usual(setting: str) -> int:
    """Return the default of a setting of the feature."""
    value: int = getattr(TimeoutManager(), setting)
    return value


@dataclass(frozen=True, slots=True)
class Progress:
    """The instant at which an event was counted, and the total at that time."""

    total: int
    at: float
    cpu: float


class Meter(Counters):
    """Telemetry that remembers the first and the last time of each event."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._marks: dict[str, list[Progress]] = {}

    def count(self, event: str, amount: int = 1) -> None:
        super().count(event, amount)
        now, cpu = time.perf_counter(), time.process_time()
        with self._changed:
            marks = self._marks.setdefault(event, [])
            total = amount + (marks[-1].total if marks else 0)
            marks[1:] = [Progress(total, now, cpu)]
            self._changed.notify_all()

    def wait_for(self, event: str, total: int, seconds: float) -> Sample:
        """Return the rate from the first batch until *total*."""
        with self._changed:
            reached = self._changed.wait_for(lambda: self._total(event) >= total, seconds)
            marks = self._marks.get(event, [])
        if not reached:
            raise TimeoutError(f"{self._total(event)} of {total} {event} in {seconds} s")
        if len(marks) < 2:
            raise ValueError(f"{total} {event} in one batch: no rate can be told")
        first, last = marks
        return Sample(last.total - first.total, last.at - first.at, last.cpu - first.cpu)

    def forget(self) -> None:
        """Begin anew."""
        with self._changed:
            self._marks.clear()

    def _total(self, event: str) -> int:
        marks = self._marks.get(event)
        return marks[-1].total if marks else 0


class Worker:
    """The process: the endpoint runs while this context is entered."""

    def __init__(self, spec: Spec) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(spec, theirs), daemon=True)
        self._profile = spec.profile
        self._spy: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process.start()
        self._answer(60)
        if self._profile is not None:
            program = str(Path(sys.executable).with_name("py-spy"))
            spy = [program, "record", "--pid", str(self.pid), "--rate", "400", "--format", "raw"]
            self._spy = subprocess.Popen([*spy, "--output", self._profile, "--duration", "600"])
        return self

    def __exit__(self, *_: object) -> None:
        if self._spy is not None:
            self._spy.send_signal(signal.SIGINT)
            self._spy.wait()
        if self._process.is_alive():
            self._pipe.send(("stop",))
            self._process.join(30)
        if self._process.is_alive():
            self.kill()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def measure(self, event: str, total: int, seconds: float = 300) -> Sample:
        """Wait until *event* was counted *total* times, and return the rate."""
        self._pipe.send(("wait_for", event, total, seconds))
        return self._answer(seconds + 10)

    def snapshot(self) -> dict[str, float]:
        """Return the counters."""
        self._pipe.send(("snapshot",))
        return self._answer(10)

    def forget(self) -> None:
        """Begin the measures anew."""
        self._pipe.send(("forget",))
        self._answer(10)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.join()

    def _answer(self, seconds: float) -> Any:
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"worker {self.pid} does not answer")
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def _observed(config: EndpointConfiguration) -> Iterator[None]:
    observer = Observer.alone(None)
    observer.prepare(config)
    with serving("127.0.0.1", 0, observer.memory, config.name):
        endpoint = Endpoint(config)
        endpoint.on_watch(lambda: observer.tick(endpoint))
        with endpoint, observer.running(endpoint):
            yield


def _serve(spec: Spec, pipe: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    meter = Meter()
    config = configuration(spec, meter)
    with _observed(config) if spec.observed else Endpoint(config):
        pipe.send("started")
        while (asked := pipe.recv())[0] != "stop":
            try:
                pipe.send(getattr(meter, asked[0])(*asked[1:]))
            except Exception as error:
                pipe.send(error)
