"""A producer: sends delayed messages until its time is over, cancels some, and writes it all down.

Its arguments are NUMBER SECONDS RATE LONGEST_DELAY CANCELLED DEAD.
"""

import heapq
import os
import sys
import time
from dataclasses import dataclass, field
from random import Random
from typing import Final

from timeoutmgr import Endpoint
from timeoutmgr.errors import DeliveryFailed, StorageUnavailable, TransportUnavailable, Unroutable
from timeoutmgr.instants import Micros, from_micros
from timeoutmgr.routing import timeout_id
from timeoutmgr.testing.chaos.promises import PromiseFile
from timeoutmgr.testing.chaos.scene import PROCESS, Scene

PATIENCE: Final = 60.0
"""Seconds for which a send or a cancel is tried again."""
PAUSE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one producer sends; seconds, and messages a second."""

    number: int
    seconds: float
    rate: float
    longest_delay: float
    cancelled: float
    dead: float


@dataclass(order=True, slots=True)
class _Cancel:
    at: float
    name: str = field(compare=False)


class Producer:
    """Sends from an endpoint with a manager that is not started here: the workers run it."""

    def __init__(self, scene: Scene, endpoint: Endpoint, load: Load) -> None:
        self._scene = scene
        self._endpoint = endpoint
        self._load = load
        self._chance = Random(f"{scene.seed} producer {load.number}")
        self._file = PromiseFile(scene.file(f"producer-{load.number}.jsonl"))
        self._cancels: list[_Cancel] = []

    def run(self) -> None:
        """Send until the time is over."""
        begin = time.monotonic()
        at, count = 0.0, 0
        while (at := at + self._chance.expovariate(self._load.rate)) < self._load.seconds:
            delay = self._chance.uniform(0.0, self._load.longest_delay)
            is_cancelled = self._chance.random() < self._load.cancelled
            dies = self._load.dead > 0 and self._chance.random() < self._load.dead
            cancel_after = self._chance.uniform(0.0, delay)
            self._wait_until(begin + at)
            count += 1
            name = f"p{self._load.number}-{count}"
            due = time.time_ns() // 1_000 + round(delay * 1e6)
            if self._send(name, due, dies) and is_cancelled and not dies:
                heapq.heappush(self._cancels, _Cancel(time.monotonic() + cancel_after, name))
            if time.monotonic() > begin + self._load.seconds:
                break  # it was held up: what could not be sent in time is not made up for
        while self._cancels:
            self._wait_until(self._cancels[0].at)
        self._file.close()

    def _wait_until(self, end: float) -> None:
        """Wait until *end*, and cancel meanwhile what is to be cancelled by then."""
        while self._cancels and self._cancels[0].at <= end:
            one = heapq.heappop(self._cancels)
            time.sleep(max(0.0, one.at - time.monotonic()))
            self._cancel(one.name)
        time.sleep(max(0.0, end - time.monotonic()))

    def _send(self, name: str, due: Micros, dies: bool) -> bool:
        self._file.trying(name, due, dies=dies)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                # The same due each time: a delay would be another one at the second attempt.
                self._endpoint.send(
                    self._scene.nowhere if dies else self._scene.consumer,
                    "Ping",
                    {"name": name},
                    deliver_at=from_micros(due),
                    message_id=name,
                )
            except Unroutable:
                raise
            except (DeliveryFailed, TransportUnavailable, StorageUnavailable):
                self._file.unclear(name, time.time_ns() // 1_000)
                time.sleep(PAUSE)
            else:
                self._file.accepted(name, time.time_ns() // 1_000)
                return True
        return False

    def _cancel(self, name: str) -> None:
        self._file.cancelling(name)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                answer = self._endpoint.timeouts.cancel(timeout_id(self._scene.manager, name))
            except StorageUnavailable:
                self._file.cancel_unclear(name)
                time.sleep(PAUSE)
            else:
                self._file.answered(name, answer)
                return


def main() -> None:
    """Run one producer."""
    number, seconds, rate, longest_delay, cancelled, dead = sys.argv[1:]
    load = Load(
        number=int(number),
        seconds=float(seconds),
        rate=float(rate),
        longest_delay=float(longest_delay),
        cancelled=float(cancelled),
        dead=float(dead),
    )
    scene = Scene.load()
    endpoint = Endpoint(scene.worker(os.environ[PROCESS].partition("#")[0]))
    Producer(scene, endpoint, load).run()
    endpoint.close()
