"""The product as users run it: ``timeoutmgr run`` in separate processes."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from timeoutmgr.message.routes import DISPATCHER, TIMEOUTS

from . import share
from .bare import broker
from .messages import QUEUE_TYPE
from .workers import Spec


@contextmanager
def running(spec: Spec, *, processes: int = 1, part: float | None = None) -> Iterator[int]:
    """Run *spec*'s endpoint and yield the process id (of the parent, if there are several).

    Once the processes consume, each gets at most *part* of a core.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tmbench-"))
        file = Path(folder, "settings.toml")
        file.write_text(_settings(spec))
        command = [sys.executable, "-m", "timeoutmgr", "--config", str(file), "run"]
        if processes > 1:
            command += ["--processes", str(processes)]
        process = subprocess.Popen(command)
        try:
            _wait_for_consumers(spec, processes, process)
            for each in _family(process.pid) if part is not None else ():
                stack.enter_context(share.held(each, part))
            yield process.pid
        finally:
            process.terminate()
            process.wait(60)


def _settings(spec: Spec) -> str:
    top = {
        "endpoint": spec.name,
        "error_queue": f"{spec.name}.error",
        "transport": spec.transport,
        "persistence": spec.persistence,
        "features": ["timeout-manager"],
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in top.items()]
    if spec.chunk is not None:
        lines += ["[timeout-manager]", f"chunk = {spec.chunk}"]
    if kind := os.environ.get(QUEUE_TYPE):
        lines += ["[transport_options]", f'queue_type = "{kind}"']
    return "\n".join(lines) + "\n"


def _wait_for_consumers(spec: Spec, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    with broker(spec.transport) as connection:
        channel = connection.channel()
        while True:
            queues = [spec.name + TIMEOUTS, spec.name + DISPATCHER]
            found = [channel.queue_declare(name, passive=True).consumer_count for name in queues]
            if min(found) >= count:
                return
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{found} consumers instead of {count}")
            time.sleep(0.01)


def _family(parent: int) -> list[int]:
    """Return the ids of *parent* and of all its descendants."""
    threads = Path(f"/proc/{parent}/task").glob("*/children")
    children = [int(child) for thread in threads for child in thread.read_text().split()]
    return [parent, *(each for child in children for each in _family(child))]


def waiting(transport: str, queue: str) -> int:
    """Return how many messages *queue* holds."""
    with broker(transport) as connection:
        count: int = connection.channel().queue_declare(queue, passive=True).message_count
    return count
