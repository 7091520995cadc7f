"""The app of a test's worker: its broker, store and log come from the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from celery import Celery

from tests.support.waiting import eventually
from timeoutmgr.contrib.celery import DurableDelays

app: Any = Celery("proj", broker=os.environ["BROKER"], backend=os.environ["RESULTS"])
app.conf.task_default_queue = os.environ["QUEUE"]
app.conf.task_acks_late = True
delays = DurableDelays(app, store=os.environ["STORE"], name=os.environ["NAME"])


@app.task(name="note")  # type: ignore[untyped-decorator]  # celery is untyped
def note(what: str) -> None:
    """Write *what* into the log."""
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{what}\n")


@app.task(name="stubborn", bind=True, max_retries=2)  # type: ignore[untyped-decorator]  # Celery's has no types
def stubborn(self: Any, what: str) -> None:
    """Fail once, and be tried again later."""
    note(f"{what} {self.request.retries}")
    if self.request.retries == 0:
        raise self.retry(countdown=1.5)


@app.task(name="sender")  # type: ignore[untyped-decorator]  # celery is untyped
def sender() -> None:
    """Write into the log whether this process has a sender, without which it sends nothing yet."""
    note(f"sender {'timeoutmgr.persistence.sql.store' in sys.modules}")


@app.task(name="wait")  # type: ignore[untyped-decorator]  # celery is untyped
def wait(what: str) -> None:
    """Write *what* into the log; end once a file of that name stands beside the log."""
    note(what)
    eventually(Path(f"{os.environ['LOG']}.{what}").exists, f"{what} may end", 120)
    note(f"{what} ended")
