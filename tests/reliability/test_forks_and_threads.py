"""One endpoint may be used by many threads, and by a child that was forked after it was made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from tests.acceptance.matrix import EMBEDDED, REFERENCE, Pair
from tests.acceptance.place import SOON, Party, Place
from tests.reliability.pairs import on

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
