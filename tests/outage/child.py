"""An endpoint in a process of its own, whose clock may be wrong. Argument: JSON, see ``process``.

It obeys its standard input, line by line: ``send <seconds>`` sends itself a message with that
delay, ``counts`` writes the counters of its telemetry.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from datetime import timedelta
from typing import Any, SupportsIndex

from timeoutmgr import CriticalErrorContext, Endpoint, EndpointConfiguration, HandlerContext
from timeoutmgr.message.headers import DELIVER_AT
from timeoutmgr.message.instants import from_wire
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.telemetry import Counters

_ENDPOINT_LOCK = threading.Lock()


def sleep(seconds: SupportsIndex | float, /) -> None:
    """Sleep in a way that libfaketime 0.9 lets pass: ``time.sleep`` fails there with EINVAL."""
    threading.Event().wait(float(seconds))


def say(what: str, **facts: Any) -> None:
    """Write one line; the monotonic clock is the whole host's and never wrong."""
    facts |= {"say": what, "at": time.monotonic(), "clock": time.time()}
    with _ENDPOINT_LOCK:
        print(json.dumps(facts), flush=True)


def got(_body: Any, context: HandlerContext) -> None:
    """Tell of a message that arrived."""
    due = from_wire(context.message.headers[DELIVER_AT])
    say("got", id=context.message.id, due=due / 1_000_000)


def critical(context: CriticalErrorContext) -> None:
    """Tell of a critical error, and go on."""
    say("critical", error=context.error)


def configuration(given: dict[str, Any], counters: Counters) -> EndpointConfiguration:
    """Return the endpoint that the parent asked for."""
    config = EndpointConfiguration(given["name"])
    config.error_queue = f"{given['name']}.error"
    config.use_transport(given["transport"])
    config.use_persistence(given["store"])
    config.telemetry = counters
    config.add_handler("Ping", got)
    if given["goes_on"]:
        config.define_critical_error_action(critical)
    poll = timedelta(seconds=given["poll"])
    config.enable_feature(TimeoutManager(poll_interval=poll))
    return config


def obey(endpoint: Endpoint, counters: Counters) -> None:
    """Obey standard input until it ends."""
    for line in sys.stdin:
        word, *more = line.split()
        if word == "send":
            sent = endpoint.send_local("Ping", None, delay=float(more[0]))
            say("sent", id=sent.message_id)
        else:
            say("counts", **counters.snapshot())


def main(given: dict[str, Any]) -> int:
    """Run until a command to end; 3 after a critical error."""
    time.sleep = sleep
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    counters = Counters()
    with Endpoint(configuration(given, counters)) as endpoint:
        say("runs")
        threading.Thread(target=obey, args=(endpoint, counters), daemon=True).start()
        endpoint.wait()
    return 0 if endpoint.critical_error is None else 3


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
