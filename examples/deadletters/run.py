"""Dead letters of seven classes, on two nodes: their queues, and their retry.

Everything is in one SQLite file. ``shop`` sends; ``warehouse`` is on another node and receives.
Once all messages are dead letters, the causes are removed and the command line retries them. Exit
code 1: a message did not become a dead letter, or did not arrive after the retry.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from timeoutmgr import Endpoint, EndpointConfiguration, HandlerContext, RecoverabilitySettings
from timeoutmgr.deadletter import (
    DeadLetterQueues,
    DeliveryOptions,
    JournalLevel,
    MessageClass,
    Rejected,
)
from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.errors import MessageRejected
from timeoutmgr.satellites import TimeoutManager

PATIENCE = 60.0
NODES = {"shop": "shop-1", "warehouse": "warehouse-1"}
WANTED = DeliveryOptions(journal=JournalLevel.DEADLETTER)
Handler = Callable[[Any, HandlerContext], None]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: make demo DEMO=deadletters"
    )
    parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # the table below has the same facts
    with tempfile.TemporaryDirectory(prefix="deadletters-") as folder:
        return _demo(f"sqlite:///{Path(folder, 'timeoutmgr.db')}")


def _demo(url: str) -> int:
    with ExitStack() as stack:
        shop = stack.enter_context(closing(_endpoint(url, "shop", {})))
        warehouse = stack.enter_context(closing(_endpoint(url, "warehouse", _refusing())))
        for endpoint in (shop, warehouse):
            endpoint.install()
        _create(url, "asleep", "old")
        expected = _send(shop)
        time.sleep(0.3)  # until a message exceeds its time to be received
        shop.start()
        warehouse.start()
        _command(url, "shop", "deadletters", "purge", "old")
        died = _wait_until_dead(url, expected)
    _show(died)
    if {one["message_id"]: one["class"] for one in died} != expected:
        print(f"expected {expected}")
        return 1
    return _retry(url, expected)


def _endpoint(url: str, name: str, handlers: dict[str, Handler]) -> Endpoint:
    config = EndpointConfiguration(name)
    config.use_transport(url)
    config.use_persistence(url)
    config.check_destinations = False  # otherwise the send fails for a missing destination
    config.recoverability = RecoverabilitySettings(immediate=1, delayed=0)
    config.enable_feature(TimeoutManager())
    config.enable_feature(
        DeadLetterQueues(node=NODES[name], sweep_interval=timedelta(milliseconds=200))
    )
    for message_type, handler in handlers.items():
        config.add_handler(message_type, handler)
    return Endpoint(config)


def _refusing() -> dict[str, Handler]:
    """Return the handlers of a warehouse; each of them rejects its message."""

    def reject(_body: Any, _context: HandlerContext) -> None:
        raise MessageRejected("no such article")

    def distrust(_body: Any, _context: HandlerContext) -> None:
        raise Rejected(MessageClass.NACK_BAD_SIGNATURE, "the signature does not match")

    def puzzle(_body: Any, _context: HandlerContext) -> None:
        raise Rejected(MessageClass.NACK_BAD_ENCRYPTION, "the key is unknown")

    return {"Order": reject, "Signed": distrust, "Secret": puzzle, "Offer": reject}


def _send(shop: Endpoint) -> dict[str, str]:
    """Send one message for each reason; return the expected class of dead letter by its id."""
    brief = timedelta(milliseconds=100)
    kept = DeliveryOptions(transactional=True, journal=JournalLevel.DEADLETTER)
    shop.send("nowhere", "Reminder", 1, delay=0.1, message_id="to-nowhere")
    shop.send("warehouse", "Order", 2, message_id="rejected")
    shop.send("warehouse", "Signed", 3, message_id="bad-signature")
    shop.send("warehouse", "Secret", 4, message_id="bad-encryption")
    shop.send(
        "warehouse", "Offer", 5, message_id="too-late", time_to_be_received=brief, delivery=WANTED
    )
    shop.send(
        "asleep", "Offer", 6, message_id="never-read", time_to_be_received=brief, delivery=kept
    )
    shop.send("old", "Order", 7, message_id="purged")
    return {
        "to-nowhere": "NACK_BAD_DST_Q",
        "rejected": "NACK_RECEIVE_REJECTED",
        "bad-signature": "NACK_BAD_SIGNATURE",
        "bad-encryption": "NACK_BAD_ENCRYPTION",
        "too-late": "NACK_RECEIVE_TIMEOUT",
        "never-read": "NACK_RECEIVE_TIMEOUT",
        "purged": "NACK_Q_PURGED",
    }


def _wait_until_dead(url: str, expected: dict[str, str]) -> list[dict[str, Any]]:
    deadline = time.monotonic() + PATIENCE
    while True:
        died = _letters(url)
        if len(died) >= len(expected) or time.monotonic() > deadline:
            return died
        time.sleep(0.5)


def _letters(url: str) -> list[dict[str, Any]]:
    """Return all dead letters of both nodes, each with its queue."""
    found = []
    for endpoint, node in NODES.items():
        for queue in ("deadletter", "deadxact"):
            listed = _command(url, endpoint, "--json", "deadletters", "list", "--queue", queue)
            for dead_letter in json.loads(listed)["letters"]:
                found.append({**dead_letter, "node": node, "queue": queue, "endpoint": endpoint})
    return found


def _show(died: list[dict[str, Any]]) -> None:
    print(f"{len(died)} messages are dead:")
    for one in died:
        where = f"{one['node']}, {one['queue']}"
        print(f"  {one['message_id']:<15} {one['class']:<22} {where}: {one['reason']}")


def _retry(url: str, expected: dict[str, str]) -> int:
    """Remove the causes, retry by the command line, and wait for all messages."""
    arrived: list[str] = []

    def note(_body: Any, context: HandlerContext) -> None:
        arrived.append(context.message_id)

    kinds = ("Order", "Signed", "Secret", "Offer", "Reminder")
    handlers: dict[str, Handler] = dict.fromkeys(kinds, note)
    _create(url, "nowhere")
    for endpoint in NODES:
        for queue in ("deadletter", "deadxact"):
            _command(url, endpoint, "deadletters", "retry", "--all", "--queue", queue)
    with closing(_endpoint(url, "warehouse", handlers)) as warehouse:
        warehouse.start()
        elsewhere = {"nowhere": 1, "asleep": 1, "old": 1}
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            counts = _counts(url, *elsewhere)
            if len(arrived) == 4 and counts == elsewhere:
                break
            time.sleep(0.2)
    left = _letters(url)
    print(f"retried: {len(arrived)} were received by the warehouse, {counts} wait in other queues")
    print(f"{len(left)} dead letters are left")
    return int(bool(left) or len(set(arrived)) != 4 or counts != elsewhere or not expected)


def _create(url: str, *queues: str) -> None:
    with closing(transport_from_url(url)) as transport, closing(transport.session()) as session:
        session.create_queues(queues)


def _counts(url: str, *queues: str) -> dict[str, int]:
    with closing(transport_from_url(url)) as transport, closing(transport.session()) as session:
        return {queue: session.count(queue) for queue in queues}


def _command(url: str, endpoint: str, *arguments: str) -> str:
    """Run the command line as *endpoint*; exit code 3 means that nothing was found."""
    environment = {
        **os.environ,
        "TIMEOUTMGR_ENDPOINT": endpoint,
        "TIMEOUTMGR_TRANSPORT": url,
        "TIMEOUTMGR_PERSISTENCE": url,
        "TIMEOUTMGR_FEATURES": "timeout-manager,dead-letter-queues",
        "TIMEOUTMGR_DEAD_LETTER_QUEUES_NODE": NODES[endpoint],
    }
    ended = subprocess.run(
        [sys.executable, "-m", "timeoutmgr", *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    if ended.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(arguments)}: {ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
