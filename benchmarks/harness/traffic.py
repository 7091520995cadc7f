"""Messages that flow through a timeout manager, and the time at which each arrived."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Self

from timeoutmgr import Endpoint, EndpointConfiguration, HandlerContext
from timeoutmgr.errors import DeliveryUnknown, StorageUnavailable, TransportUnavailable
from timeoutmgr.satellites import TimeoutManager

DELAY = timedelta(milliseconds=500)
PAUSE = 0.02
"""Seconds between two sends."""
PATIENCE = 60.0
ENDPOINT = "traffic"
_ARRIVALS = "arrivals"


def sender(url: str) -> EndpointConfiguration:
    """Return the configuration of the endpoint that stores and dispatches, all at *url*."""
    config = EndpointConfiguration(ENDPOINT)
    config.use_transport(url)
    config.use_persistence(url)
    config.critical_error_action = "log"
    config.enable_feature(TimeoutManager())
    return config


class Traffic:
    """Sends delayed messages, each repeatedly until it is accepted, and receives them.

    The receiver is a separate endpoint: it also counts messages that another process dispatches.
    """

    def __init__(self, url: str) -> None:
        self.accepted: dict[str, float] = {}
        self.arrived: dict[str, list[float]] = {}
        self._stop = threading.Event()
        arrivals = EndpointConfiguration(_ARRIVALS)
        arrivals.use_transport(url)
        arrivals.critical_error_action = "log"
        arrivals.add_handler("Note", self._note)
        self._endpoints = (Endpoint(arrivals), Endpoint(sender(url)))
        self._thread = threading.Thread(target=self._send_all, daemon=True)

    def __enter__(self) -> Self:
        for endpoint in self._endpoints:
            endpoint.start()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop_sending()
        for endpoint in reversed(self._endpoints):
            endpoint.close()

    def finish(self) -> int:
        """Stop sending; return how many accepted messages have not arrived in time."""
        self._stop_sending()
        self._until(lambda: not self._missing())
        return len(self._missing())

    @property
    def repeats(self) -> int:
        return sum(len(each) - 1 for each in self.arrived.values())

    @property
    def lateness(self) -> list[float]:
        """The seconds by which each message arrived later than its delay after its send."""
        delay = DELAY.total_seconds()
        return [self.arrived[id_][0] - self.accepted[id_] - delay for id_ in self._both()]

    @property
    def longest_pause(self) -> float:
        """The longest time in seconds between two accepted sends."""
        times = sorted(self.accepted.values())
        return max(b - a for a, b in pairwise(times))

    def _both(self) -> set[str]:
        return self.accepted.keys() & self.arrived.keys()

    def _missing(self) -> set[str]:
        return self.accepted.keys() - self.arrived.keys()

    def _note(self, _message: object, context: HandlerContext) -> None:
        self.arrived.setdefault(context.message_id, []).append(time.monotonic())

    def _send_all(self) -> None:
        number = 0
        while not self._stop.wait(PAUSE):
            try:
                self._endpoints[-1].send(_ARRIVALS, "Note", 1, delay=DELAY, message_id=f"m{number}")
            except (DeliveryUnknown, StorageUnavailable, TransportUnavailable):
                continue
            self.accepted[f"m{number}"] = time.monotonic()
            number += 1

    def _stop_sending(self) -> None:
        self._stop.set()
        self._thread.join()

    def _until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not holds() and time.monotonic() < end:
            time.sleep(0.05)
