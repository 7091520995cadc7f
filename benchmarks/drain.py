"""The rates at which timeouts are stored, and of one instant go through both satellites.

    python benchmarks/drain.py [--count 5000] [--transport URL] [--persistence URL]

Prints one line of JSON: rates per second of the store's batches of 100, and from the endpoint's
start until the last message is in its destination. One process holds everything. Compare ratios
of one machine's runs, not absolute figures.
"""

import argparse
import json
import tempfile
import time
import uuid
from contextlib import closing
from pathlib import Path

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.clock import SystemClock
from timeoutmgr.config import persistence_from_url, transport_from_url
from timeoutmgr.contracts import Timeout
from timeoutmgr.message import Message
from timeoutmgr.satellites import TimeoutManager

BATCH = 100
HEADERS = {f"header-{number}": "value" for number in range(5)}


def main() -> None:
    """Run once and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--transport")
    parser.add_argument("--persistence")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        embedded = f"sqlite:///{Path(folder) / 'drain.db'}"
        transport = given.transport or embedded
        print(json.dumps(drain(transport, given.persistence or transport, given.count)))


def drain(transport_url: str, persistence_url: str, count: int) -> dict[str, float]:
    """Store *count* timeouts that are due at once, dispatch them, and return the rates."""
    name = f"drain{uuid.uuid4().hex[:8]}"
    config = EndpointConfiguration(name)
    config.error_queue = f"{name}.error"
    config.use_transport(transport_from_url(transport_url))
    persistence = persistence_from_url(persistence_url)
    config.use_persistence(persistence)
    config.enable_feature(TimeoutManager())
    endpoint = Endpoint(config)
    queues = endpoint.install()
    destination = f"{name}.destination"
    with closing(transport_from_url(transport_url).session()) as session:
        session.create_queues([destination])
        began = time.perf_counter()
        store = persistence.timeouts(name, SystemClock())
        for _ in range(0, count, BATCH):
            store.store_many([timeout(destination) for _ in range(BATCH)])
        stored = time.perf_counter()
        with endpoint:
            while session.count(destination) < count:
                time.sleep(0.01)
            drained = time.perf_counter()
        session.delete_queues([destination, *queues])
    return {
        "count": count,
        "stored_per_second": round(count / (stored - began)),
        "dispatched_per_second": round(count / (drained - stored)),
    }


def timeout(destination: str) -> Timeout:
    """Return a timeout that is due, with 512 bytes of body and five headers."""
    message = Message(id=str(uuid.uuid4()), headers=HEADERS, body=b"x" * 512)
    return Timeout(id=message.id, due=SystemClock().now(), destination=destination, message=message)


if __name__ == "__main__":
    main()
