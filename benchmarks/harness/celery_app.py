"""A Celery app whose tasks write into a file; its delays are durable if a store is given.

Its environment: BROKER, STORE (empty for stock Celery), NAME, LOG (the file).
"""

import json
import os
import time
from datetime import datetime
from typing import Any

from celery import Celery

from timeoutmgr.transport.sql import register

register()
BROKER, STORE = os.environ["BROKER"], os.environ["STORE"]
NAME, LOG = os.environ["NAME"], os.environ["LOG"]
RETRY_AFTER = 8.0

app: Any = Celery(NAME, broker=BROKER)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue=NAME,
    # A topic exchange: a second queue bound to it, the tap, gets a copy of each published task.
    task_default_exchange=f"{NAME}-tasks",
    task_default_exchange_type="topic",
    task_default_routing_key=NAME,
    broker_connection_retry_on_startup=True,
)
if BROKER.startswith("redis"):
    app.conf.broker_transport_options = {"visibility_timeout": 30}
if BROKER.startswith("amqp"):
    # A send returns when the broker has the task, like a commit.
    app.conf.broker_transport_options = {"confirm_publish": True}
delays: Any = None
if STORE:
    from timeoutmgr.contrib.celery import DurableDelays

    delays = DurableDelays(app, store=STORE, name=NAME)


@app.task(bind=True, name="note", max_retries=1)
def note(self: Any, retries: bool = False) -> None:
    """Write a line about this run, and retry once if *retries*."""
    request, now = self.request, time.time()
    due = datetime.fromisoformat(request.eta).timestamp()
    line = {"id": request.id, "retries": request.retries, "late": now - due, "due": due}
    line["redelivered"] = bool(request.delivery_info.get("redelivered"))
    with open(LOG, "a") as log:
        log.write(json.dumps(line) + "\n")
    if retries and not request.retries:
        raise self.retry(countdown=RETRY_AFTER)
