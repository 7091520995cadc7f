"""Parts of a program that need its Celery app; the last line of the output is the answer."""

import json
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

from harness.celery_app import app, delays

NOTE = app.tasks["note"]
WEEK = 7 * 86_400


def send(first: str, tasks: str, spread: str) -> dict[str, list[str]]:
    """Send *tasks* that are due from *first* on; each tenth is retried once."""
    sent, retrying = [], []
    count = int(tasks)
    with delays.batch() if delays else nullcontext():
        for number in range(count):
            at = float(first) + float(spread) * number / count
            task = NOTE.apply_async((number % 10 == 1,), eta=datetime.fromtimestamp(at, UTC))
            sent.append(task.id)
            if number % 10 == 1:
                retrying.append(task.id)
    return {"sent": sent, "retrying": retrying, "revoked": sent[2::10]}


def revoke(*ids: str) -> int:
    """Revoke tasks; return their number."""
    app.control.revoke(list(ids))
    return len(ids)


def stored() -> int:
    """Return the number of tasks in the store."""
    return 0 if delays is None else sum(1 for _ in delays.list())


def rate(count: str, batch: str) -> float:
    """Return how many delayed tasks a second are sent, in ``delays.batch()`` if *batch* is yes."""
    NOTE.apply_async(countdown=WEEK)  # connections are open
    began = time.perf_counter()
    with delays.batch() if batch == "yes" else nullcontext():
        for _ in range(int(count)):
            NOTE.apply_async(countdown=WEEK)
    return int(count) / (time.perf_counter() - began)


if __name__ == "__main__":
    parts: dict[str, Any] = {"send": send, "revoke": revoke, "stored": stored, "rate": rate}
    print(json.dumps(parts[sys.argv[1]](*sys.argv[2:])))
