"""A producer: sends delayed messages, cancels a share, and records every step.

In a mixed fleet half of them go to the endpoint of the other kind, which has to send them on.

Its arguments are NUMBER SECONDS RATE LONGEST_DELAY CANCELLED DEAD.
"""

import heapq
import os
import sys
import time
from dataclasses import dataclass, field
from random import Random
from typing import Final

from chaos.environment import PROCESS, Environment
from chaos.foreign_messages import foreign_message, route_of
from chaos.handling import Failing
from chaos.producer_ledger import ProducerLedgerWriter
from chaos.worker import sender
from timeoutmgr import Endpoint
from timeoutmgr.errors import DeliveryFailed, StorageUnavailable, TransportUnavailable, Unroutable
from timeoutmgr.message.foreign import Foreign
from timeoutmgr.message.instants import Micros, from_micros
from timeoutmgr.message.routes import timeout_id

PATIENCE: Final = 60.0
"""Seconds for which a send or a cancel is retried."""
PAUSE: Final = 0.1
CROSSING: Final = 0.5
"""Share of messages for the other endpoint of a mixed fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of a producer: seconds, and messages a second."""

    number: int
    seconds: float
    rate: float
    longest_delay: float
    cancelled: float
    dead: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ping:
    """A message. *then* is the due time of its follower, if a receiver sends it on."""

    name: str
    due: Micros
    dies: bool = False
    is_cancelled: bool = False
    then: Micros | None = None

    @property
    def follower(self) -> str:
        """The name under which it is sent on."""
        return f"{self.name}.on"


@dataclass(order=True, slots=True)
class _Cancel:
    at: float
    name: str = field(compare=False)


class Producer:
    """Sends from an endpoint whose timeout manager runs only in the workers."""

    def __init__(self, environment: Environment, endpoint: Endpoint, load: Load) -> None:
        self._environment = environment
        self._endpoint = endpoint
        self._load = load
        self._chance = Random(f"{environment.seed} producer {load.number}")
        self._file = ProducerLedgerWriter(environment.file(f"producer-{load.number}.jsonl"))
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
            crosses = self._environment.mixed and self._chance.random() < CROSSING and not dies
            longer = self._chance.uniform(0.0, self._load.longest_delay) if crosses else 0.0
            self._wait_until(begin + at)
            count += 1
            due = time.time_ns() // 1_000 + round(delay * 1e6)
            ping = _Ping(
                name=f"p{self._load.number}-{count}",
                due=due,
                dies=dies,
                is_cancelled=is_cancelled and not dies and not crosses,
                then=due + round(longer * 1e6) if crosses else None,
            )
            if self._send(ping) and ping.is_cancelled:
                heapq.heappush(self._cancels, _Cancel(time.monotonic() + cancel_after, ping.name))
            if time.monotonic() > begin + self._load.seconds:
                break  # the producer was delayed: skip the remaining messages
        while self._cancels:
            self._wait_until(self._cancels[0].at)
        self._file.close()

    def _wait_until(self, end: float) -> None:
        """Wait until *end*; carry out all cancels due by then."""
        while self._cancels and self._cancels[0].at <= end:
            one = heapq.heappop(self._cancels)
            time.sleep(max(0.0, one.at - time.monotonic()))
            self._cancel(one.name)
        time.sleep(max(0.0, end - time.monotonic()))

    def _send(self, ping: _Ping) -> bool:
        self._promise(ping)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                # Give a due time, not a delay: a second attempt keeps the due time.
                self._endpoint.send(
                    self._destination(ping),
                    self._environment.handling.message_type(ping.name),
                    self._content(ping),
                    deliver_at=from_micros(ping.due),
                    message_id=ping.name,
                    # Only a store can cancel: without a delay level, all messages are in the store.
                    cancellable=ping.is_cancelled,
                )
            except Unroutable:
                raise
            except (DeliveryFailed, TransportUnavailable, StorageUnavailable):
                self._file.unclear(ping.name, time.time_ns() // 1_000)
                time.sleep(PAUSE)
            else:
                now = time.time_ns() // 1_000
                if ping.then is not None:
                    self._file.accepted(ping.follower, now)
                self._file.accepted(ping.name, now)
                return True
        return False

    def _promise(self, ping: _Ping) -> None:
        natively, by = self._environment.sends_natively, os.environ[PROCESS]
        # The consumer's handlers fail; a worker, which sends a message on, does not.
        fails = ping.then is None and not ping.dies and self._fails(ping.name)
        self._file.trying(
            ping.name, ping.due, dies=ping.dies, fails=fails, natively=natively, by=by
        )
        if ping.then is not None:
            # The endpoint of the other kind sends it on, in its way.
            self._file.trying(
                ping.follower,
                ping.then,
                fails=self._fails(ping.follower),
                natively=not natively,
                after=ping.name,
            )

    def _fails(self, name: str) -> bool:
        return self._environment.handling.failing_of(name) is Failing.ALWAYS

    def _destination(self, ping: _Ping) -> str:
        if ping.dies:
            return self._environment.nowhere
        if self._is_foreign(ping):
            return route_of(self._environment).destination
        return self._environment.consumer if ping.then is None else self._environment.other

    def _is_foreign(self, ping: _Ping) -> bool:
        # The delay levels carry no message of another program.
        is_stored = not self._environment.sends_natively
        plain = ping.then is None and not ping.dies
        return plain and is_stored and self._environment.is_foreign(ping.name)

    def _content(self, ping: _Ping) -> dict[str, object] | Foreign:
        if self._is_foreign(ping):
            named = {"name": ping.name}
            environment, kind = (
                self._environment,
                self._environment.handling.message_type(ping.name),
            )
            return foreign_message(environment, ping.name, kind, named)
        if ping.then is None:
            return {"name": ping.name}
        return {"name": ping.name, "then": {"name": ping.follower, "due": ping.then}}

    def _cancel(self, name: str) -> None:
        self._file.cancelling(name)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                answer = self._endpoint.timeouts.cancel(timeout_id(self._environment.own, name))
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
    environment = Environment.load()
    endpoint = Endpoint(sender(environment))
    Producer(environment, endpoint, load).run()
    endpoint.close()
