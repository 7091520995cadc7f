"""One endpoint may be used by many threads, and by a child that was forked after it was made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.acceptance.matrix import EMBEDDED, REFERENCE, Pair
from tests.acceptance.place import SOON, Party, Place
from tests.reliability.pairs import on
from tests.support.clock import FakeClock
from tests.support.forks import ended_in_a_child
from timeoutmgr import Endpoint
from timeoutmgr.contrib.handler_registry import HandlerRegistry
from timeoutmgr.database import Database, upgrade
from timeoutmgr.endpoint.async_context import AsyncHandlerContext
from timeoutmgr.endpoint.concurrent_handlers import ConcurrentHandlerStep
from timeoutmgr.message.message import Message, Received
from timeoutmgr.metrics.memory import CountMemory
from timeoutmgr.metrics.recorder import Recorder
from timeoutmgr.resilience.breakers import OutageBreaker, RateBreaker, SharedOutage
from timeoutmgr.resilience.channel_log import ChannelLog
from timeoutmgr.resilience.critical import CriticalErrors
from timeoutmgr.telemetry import Counters
from timeoutmgr.testing import configure
from timeoutmgr.transport.in_flight import ConcurrentHandling

_ROOT = Path(__file__).parents[2]

_FORKS = """
import json, os, sys
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.satellites import TimeoutManager

given = json.loads(sys.argv[1])
config = EndpointConfiguration(given["name"])
config.error_queue = given["name"] + ".error"
config.use_transport(given["transport"])
config.use_persistence(given["store"])
config.enable_feature(TimeoutManager())
endpoint = Endpoint(config)

def send(who):
    for n in range(given["count"]):
        endpoint.send_local("Ping", n, delay=0.1, message_id=f"{who}-{n}")

send("before")  # so that there are connections for the child to inherit
child = os.fork()
send("child" if child == 0 else "parent")
if child == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@on(EMBEDDED, Pair("postgres", "postgres"), Pair("mysql", "mysql"), REFERENCE)
def test_parent_and_forked_child_send_through_one_endpoint(place: Place) -> None:
    party = Party(place).start()
    given = {
        "name": place.name,
        "transport": place.transport_url,
        "store": place.store_url,
        "count": 20,
    }

    program = subprocess.run(
        [sys.executable, "-c", _FORKS, json.dumps(given)],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert program.returncode == 0, program.stderr
    arrived = party.inbox.wait_for(60)
    sent = [f"{who}-{n}" for who in ("before", "child", "parent") for n in range(20)]
    assert Counter(one.id for one in arrived) == Counter(sent)


_STARTS = """
import json, os, sys, threading
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.satellites import TimeoutManager

given = json.loads(sys.argv[1])
config = EndpointConfiguration(given["name"])
config.concurrency = 1
config.use_transport(given["transport"])
config.use_persistence(given["store"])
config.enable_feature(TimeoutManager())
(handled, report), (ended, end) = os.pipe(), os.pipe()

@config.handler("Ping")
def handle(message, context):
    os.write(report, b"%d\\n" % os.getpid())
    os.read(ended, 1)  # so that only the other child is free

endpoint = Endpoint(config)
endpoint.install()
endpoint.send_local("Ping", 0)
children = [os.fork()]
if children[0]:
    children.append(os.fork())
if not all(children):
    os.close(end)
    endpoint.start()
    os.read(ended, 1)
    endpoint.close()
    os._exit(0)
handlers, lines = [], os.fdopen(handled)
for n in range(2):
    endpoint.send_local("Ping", n)
    handlers.append(int(lines.readline()))
assert sorted(handlers) == sorted(children), (handlers, children)
store = endpoint.parts.features.store
while len(processes := store.processes()) < 2:
    pass
assert {one.pid for one in processes} == set(children), processes
os.close(end)
sys.exit(max(os.waitpid(child, 0)[1] for child in children))
"""


@on(EMBEDDED, Pair("postgres", "postgres"), Pair("mysql", "mysql"))
def test_each_of_two_forked_children_of_one_endpoint_handles_a_message(place: Place) -> None:
    given = {"name": place.name, "transport": place.transport_url, "store": place.store_url}

    program = subprocess.run(
        [sys.executable, "-c", _STARTS, json.dumps(given)],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert program.returncode == 0, program.stderr


@on(EMBEDDED, REFERENCE)
def test_eight_threads_send_through_one_endpoint(place: Place) -> None:
    party = Party(place).start()
    together = threading.Barrier(8)
    sent: list[str] = []

    def send() -> None:
        together.wait(10)
        for n in range(20):
            sent.append(party.endpoint.send_local("Ping", n, delay=SOON).message_id)

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    arrived = party.inbox.wait_for(160)
    assert Counter(one.id for one in arrived) == Counter(sent)


LockAndUse: TypeAlias = tuple[AbstractContextManager[object], Callable[[], object]]
ERROR = RuntimeError("the server is away")


def _outage() -> OutageBreaker:
    return OutageBreaker(
        "b", time_to_wait=timedelta(0), on_trigger=lambda _: None, clock=FakeClock()
    )


def _of_outage() -> LockAndUse:
    breaker = _outage()
    return breaker._lock, lambda: breaker.failure(ERROR)


def _of_rate() -> LockAndUse:
    breaker = RateBreaker("b", per_second=1, on_trigger=lambda _: None, clock=FakeClock())
    return breaker._lock, lambda: breaker.failure(ERROR)


def _of_shared_outage() -> LockAndUse:
    shared = SharedOutage()
    return shared._lock, lambda: shared.is_reported(_outage())


def _of_critical_errors() -> LockAndUse:
    critical = CriticalErrors()
    return critical._lock, lambda: critical.started(lambda: None)


def _of_channel_log() -> LockAndUse:
    log = ChannelLog("wakes")
    newest = Received(message=Message(id="1"), queue="sales.Timeouts", tag=0)
    return log._lock, lambda: log.note(newest, 1.0)


def _of_registry() -> LockAndUse:
    registry = HandlerRegistry()
    return registry._lock, lambda: registry.handler("Ping")(print)


def _of_telemetry() -> LockAndUse:
    counters = Counters()
    endpoint = Endpoint(configure("sales", telemetry=counters))
    return counters._lock, lambda: endpoint.parts.settings.telemetry.count("handled")


def _of_names() -> LockAndUse:
    memory = CountMemory.create(1)
    return memory.queues.lock, lambda: memory.queues.number("sales")


def _of_recorder() -> LockAndUse:
    memory = CountMemory.create(1)
    recorder = Recorder(memory, memory.sections[0], Counters())
    return recorder._others._lock, lambda: recorder.count("of a plugin")


async def _handle(_message: object, _context: AsyncHandlerContext) -> None:
    """Handle nothing."""


def _concurrent() -> ConcurrentHandling:
    config = configure("sales")
    config.add_handler("Ping", _handle)
    found = [each.consumption.concurrent for each in Endpoint(config).parts.satellites]
    [concurrent] = filter(None, found)
    return concurrent


def _of_carried_clock() -> LockAndUse:
    step = _concurrent().step
    assert isinstance(step, ConcurrentHandlerStep)
    return step.work.clock._asking, step.work.clock


def _of_upgrade() -> LockAndUse:
    def install() -> None:
        with upgrade._one_at_a_time:
            pass

    return upgrade._one_at_a_time, install


@pytest.mark.parametrize(
    "lock_and_use",
    [
        _of_outage,
        _of_rate,
        _of_shared_outage,
        _of_critical_errors,
        _of_channel_log,
        _of_registry,
        _of_telemetry,
        _of_names,
        _of_recorder,
        _of_carried_clock,
        _of_upgrade,
    ],
)
def test_a_child_does_not_wait_for_a_thread_of_its_parent(
    lock_and_use: Callable[[], LockAndUse],
) -> None:
    lock, use = lock_and_use()

    def does() -> int:
        use()
        return 0

    with lock:
        code = ended_in_a_child(does)

    assert code == 0


def test_a_child_has_every_slot_for_its_own_messages() -> None:
    slots = _concurrent().slots
    count = slots.free
    slots.reserve(count)

    assert ended_in_a_child(lambda: slots.reserve(count) - count) == 0


def test_a_child_asks_a_server_that_its_parent_has_given_up(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    database.unanswered.give_up()

    assert ended_in_a_child(lambda: int(database.unanswered.is_given_up)) == 0
