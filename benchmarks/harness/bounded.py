"""A worker with limited memory for data: it prints each handled message.

Run as ``python bounded.py URL ENDPOINT MIB [STORE]``. With the URL of a store the worker has a
timeout manager, which stores delayed messages. The kernel enforces the limit (RLIMIT_DATA), which
counts from the start of consuming; an allocation above the limit fails. Lines are JSON.
"""

import json
import resource
import sys
from pathlib import Path
from threading import Lock
from typing import Any

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.satellites import TimeoutManager

MIB = 1024 * 1024


class Tally:
    """Counts handled messages, and prints the count with the present memory."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ids: set[str] = set()

    def handle(self, body: bytes, context: Any) -> None:
        with self._lock:
            self._ids.add(context.message_id)
            memory = {"data": mib("VmData"), "peak_rss": mib("VmHWM")}
            say(handled=len(self._ids), bytes=len(body), **memory)


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def mib(kind: str) -> float:
    """Return the kernel's count of *kind*; the kernel compares VmData with the limit."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{kind}:")[2].split()[0]) / 1024


def main() -> None:
    url, name, spare = sys.argv[1], sys.argv[2], int(sys.argv[3])
    config = EndpointConfiguration(name)
    config.accept_loss()
    config.error_queue = f"{name}.error"
    config.use_transport(url, accept_loss=True)
    for store in sys.argv[4:]:
        config.use_persistence(store)
        config.enable_feature(TimeoutManager())
    config.add_handler("Big", Tally().handle)
    with Endpoint(config):
        base = mib("VmData")
        limit = round(base + spare) * MIB
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        say(ready=True, data=base, peak_rss=mib("VmHWM"))
        sys.stdin.read()


if __name__ == "__main__":
    main()
