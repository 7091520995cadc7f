"""An endpoint in a process of its own. Argument: a JSON object, see ``process.Child``."""

from __future__ import annotations

import json
import logging
import sys
from datetime import timedelta
from typing import Any

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.satellites import TimeoutManager


def configuration(given: dict[str, Any]) -> EndpointConfiguration:
    """Return the endpoint that the parent asked for."""
    config = EndpointConfiguration(given["name"])
    config.error_queue = given["error_queue"]
    config.use_transport(given["transport"], accept_loss=True)
    config.use_persistence(given["store"], accept_loss=True)
    config.transaction_mode = given["mode"]
    wait = timedelta(seconds=given.get("wait", 120))
    config.enable_feature(
        TimeoutManager(time_to_wait_before_critical_error=wait, chunk=given.get("chunk", 100))
    )
    return config


def main() -> int:
    """Install, or run until the parent ends the process; print each step as a line."""
    given = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s: %(message)s")
    endpoint = Endpoint(configuration(given))
    if given.get("do") == "install":
        print("ready", flush=True)
        sys.stdin.readline()  # all installers begin at the same moment
        print("installed", *endpoint.install(), flush=True)
        endpoint.close()
        return 0
    endpoint.run()
    print("ended", flush=True)
    return 0 if endpoint.critical_error is None else 3
