"""One run: the processes, the kill half-way, and the end once all accepted notices have arrived."""

import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from day import EASTERN, Squeeze, notices, read_flights
from judge import Verdict, judge
from scene import Scene
from screen import Progress
from stage import Stage
from troupe import Process, Server, board, producer, worker

from chaos import ChaosFailed, Percentiles
from chaos.consumer_ledger import ConsumerLedger, Delivery
from chaos.producer_ledger import ProducerLedger, Promise
from chaos.screen import Screen
from timeoutmgr.message.instants import Micros

Running = TypeVar("Running", bound=Process)

SHOW_EVERY: Final = 0.25
AFTERWARDS: Final = timedelta(seconds=30)
"""Time after the day's end in which a notice may still arrive before it counts as lost."""


class Play:
    """A run with its own queues and tables."""

    def __init__(self, scene: Scene, stage: Stage, screen: Screen[Progress]) -> None:
        self._scene = scene
        self._stage = stage
        self._screen = screen
        self._ledger = ConsumerLedger(scene)
        self._promises = ProducerLedger([scene.file("promises.jsonl")])
        self._day = notices(read_flights())
        self._deliveries: list[Delivery] = []
        self._killed_at: Micros | None = None

    def run(self) -> Verdict:
        """Return the verdict; raise ChaosFailed if a process failed without being killed."""
        self._scene.save()
        self._ledger.create()
        with ExitStack() as running:

            def start(process: Running) -> Running:
                running.callback(process.stop)
                return process

            workers = [start(worker(self._scene, number)) for number in (1, 2)]
            servers = [*workers, start(board(self._scene))]
            for server in servers:
                server.wait_until_ready()
            sender = start(producer(self._scene))
            self._watch(self._squeeze(sender), sender, servers)
            for server in workers:
                server.stop()
            self._wait_for_the_board()
        self._deliveries = self._ledger.read_all()
        self._ledger.close()
        return judge(
            self._promises.read(),
            self._deliveries,
            left=self._stage.left(),
            killed_at=self._killed_at,
            allowed_by_the_kill=self._stage.allowed_by_the_kill,
        )

    def _squeeze(self, sender: Process) -> Squeeze:
        line = sender.output.readline().strip()
        if not line:
            sender.stop()
            raise ChaosFailed(f"the producer did not begin:\n{sender.last_words()}")
        return Squeeze.of(self._day, datetime.fromisoformat(line), self._scene.seconds)

    def _watch(self, squeeze: Squeeze, sender: Process, servers: list[Server]) -> None:
        half_way = squeeze.begin + timedelta(seconds=squeeze.seconds / 2)
        deadline = squeeze.begin + timedelta(seconds=squeeze.seconds) + AFTERWARDS
        while (now := datetime.now(UTC)) < deadline:
            all_sent = sender.code is not None
            self._promises.read()
            self._deliveries = self._ledger.read()
            for process in (sender, *servers):
                process.require_well(may_end=process is sender)
            if now >= half_way and self._killed_at is None:
                servers[0].kill()
                self._killed_at = time.time_ns() // 1_000
                self._screen.say(f"killed {servers[0].name} (SIGKILL); it is not started again")
            pending = self._show(squeeze.clock(now), servers)
            arrived = {delivery.name for delivery in self._deliveries}
            outstanding = {promise.name for promise in self._accepted()} - arrived
            if all_sent and self._killed_at and not pending and not outstanding:
                return
            time.sleep(SHOW_EVERY)

    def _accepted(self) -> list[Promise]:
        return [promise for promise in self._promises.by_name.values() if promise.accepted]

    def _show(self, clock: datetime, servers: list[Server]) -> int:
        statistics = self._stage.store.statistics()
        accepted = self._accepted()
        due = {promise.name: promise.due for promise in accepted}
        late = [
            delivery.received_at - due[delivery.name]
            for delivery in self._deliveries
            if delivery.name in due
        ]
        self._screen.show(
            Progress(
                clock=clock.astimezone(EASTERN).strftime("%d %b %H:%M"),
                accepted=len(accepted),
                pending=statistics.pending,
                due=statistics.due,
                dispatched=statistics.outcomes.get("dispatched", 0),
                delivered=len(self._deliveries),
                lateness=Percentiles.of(late),
                processes=[(server.name, server.state) for server in servers],
            )
        )
        return statistics.pending

    def _wait_for_the_board(self) -> None:
        """Wait until the board's queue is empty: it may hold a repeat."""
        deadline = time.monotonic() + AFTERWARDS.total_seconds()
        while self._stage.waiting() and time.monotonic() < deadline:
            time.sleep(0.05)
