"""A test's own clock: a timeout is delivered once the clock is set past its due time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from timeoutmgr import Endpoint
from timeoutmgr.clock import SystemClock
from timeoutmgr.message.instants import Micros
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing.inbox import Inbox, configure

FORTNIGHT = timedelta(days=14)


class MovedClock(SystemClock):
    """The host's clock, moved on by hand."""

    def __init__(self, ahead: timedelta) -> None:
        self.ahead = ahead

    def now(self) -> Micros:
        return super().now() + self.ahead // timedelta(microseconds=1)


@pytest.mark.parametrize("start", [timedelta(0), FORTNIGHT, -FORTNIGHT])
@pytest.mark.parametrize("parts", ["memory", "file"])
def test_moving_the_clock_forward_delivers_due_messages(
    parts: str, start: timedelta, tmp_path: Path, unique: str
) -> None:
    clock, inbox = MovedClock(start), Inbox()
    url = f"sqlite:///{tmp_path}/x.db"
    config = configure(unique, features=[TimeoutManager()], handler=inbox)
    if parts == "file":
        config.use_transport(url)
        config.use_persistence(url)
    config.clock = clock

    with Endpoint(config) as endpoint:
        later = endpoint.send_local("Reminder", None, delay=FORTNIGHT)
        sooner = endpoint.send_local("Reminder", None, delay=timedelta(milliseconds=50))
        inbox.wait_for_id(sooner.message_id)
        assert inbox.of(later.message_id) == []

        clock.ahead += FORTNIGHT

        inbox.wait_for_id(later.message_id)
