"""How soon an endpoint works on after its PostgreSQL primary died and the standby was promoted.

Queue and store are in one PostgreSQL, whose URL names the primary and a synchronous standby.
Delayed messages are sent all the while, each again until it is accepted. The primary is killed, the
standby is promoted, and both intervals count from the end of the promotion: to the first message
that is accepted, and to the first that a handler has. In the end all that was accepted must have
come.
"""

import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

from harness.figures import say
from harness.report import Report, options, parsed
from sqlalchemy import make_url

from tests.services.postgres import PrivatePostgres, PrivateStandby
from timeoutmgr import Endpoint, EndpointConfiguration, HandlerContext
from timeoutmgr.errors import DeliveryUnknown, StorageUnavailable, TransportUnavailable
from timeoutmgr.satellites import TimeoutManager

SOON = 5.0
"""Seconds within which work resumes."""
DELAY = timedelta(milliseconds=500)
PAUSE = 0.02
"""Seconds between two sends."""
BEFORE, BEHIND = 3.0, 12.0
"""Seconds of sending before the kill, and after the promotion."""
PATIENCE = 60.0
OUTAGES = (0.0, 20.0)
"""Seconds between the kill and the promotion: the pauses between attempts grow meanwhile."""


class Traffic:
    """Messages that are sent until they are accepted, and when each came."""

    def __init__(self, url: str) -> None:
        self.accepted: dict[str, float] = {}
        self.arrived: dict[str, list[float]] = {}
        self._stop = threading.Event()
        config = EndpointConfiguration("failover")
        config.use_transport(url)
        config.use_persistence(url)
        config.critical_error_action = "log"
        config.enable_feature(TimeoutManager())
        config.add_handler("Note", self._note)
        self.endpoint = Endpoint(config)
        self._thread = threading.Thread(target=self._send_all, daemon=True)

    def __enter__(self) -> "Traffic":
        self.endpoint.start()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.endpoint.close()

    def finish(self) -> int:
        """Stop sending; return how many accepted messages have not come in time."""
        self._stop.set()
        self._thread.join()
        end = time.monotonic() + PATIENCE
        while (left := len(self.accepted.keys() - self.arrived.keys())) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def _note(self, _message: object, context: HandlerContext) -> None:
        self.arrived.setdefault(context.message_id, []).append(time.monotonic())

    def _send_all(self) -> None:
        number = 0
        while not self._stop.wait(PAUSE):
            try:
                self.endpoint.send_local("Note", 1, delay=DELAY, message_id=f"m{number}")
            except (DeliveryUnknown, StorageUnavailable, TransportUnavailable):
                continue
            self.accepted[f"m{number}"] = time.monotonic()
            number += 1


@contextmanager
def pair() -> Iterator[PrivateStandby]:
    """Start a primary and a standby that each commit waits for; remove both at the end."""
    folder = Path(tempfile.gettempdir(), f"tmbench-{secrets.token_hex(4)}")
    with ExitStack() as stack:
        primary = PrivatePostgres(folder.with_name(f"{folder.name}-a"))
        stack.callback(primary.remove)
        primary.start()
        standby = PrivateStandby(folder.with_name(f"{folder.name}-b"), primary)
        stack.callback(standby.remove)
        standby.start()
        standby.require()
        yield standby


def url_of(standby: PrivateStandby) -> str:
    ports = f"{standby.primary.port},{standby.port}"
    query = {"host": "127.0.0.1,127.0.0.1", "port": ports, "target_session_attrs": "read-write"}
    url = make_url("postgresql+psycopg://postgres@/postgres").update_query_dict(query)
    return url.render_as_string(hide_password=False)


def fail_over(report: Report, number: int, outage: float) -> None:
    name = f"fail-over {number}, {outage:g} s without a primary"
    with pair() as standby, Traffic(url_of(standby)) as traffic:
        time.sleep(BEFORE)
        standby.primary.kill()
        time.sleep(outage)
        standby.promote()
        promoted = time.monotonic()
        time.sleep(BEHIND)
        lost = traffic.finish()
    accepted = min(at for at in traffic.accepted.values() if at > promoted) - promoted
    arrivals = [at for each in traffic.arrived.values() for at in each]
    handled = min(at for at in arrivals if at > promoted) - promoted
    repeats = len(arrivals) - len(traffic.arrived)
    say(f"{name}: accepted after {accepted:.2f} s, handled after {handled:.2f} s")
    beside = f"{len(traffic.accepted)} accepted, {repeats} repeated"
    report.bar(f"{name}: lost", lost, 0, at_most=True, beside=beside)
    for what, seconds in (("accepted", accepted), ("handled", handled)):
        figure = f"{name}: promotion to the first message {what}"
        report.bar(figure, seconds, SOON, at_most=True, unit=" s")


def main() -> None:
    given = parsed(options(__doc__), count=0, quick=0)
    report = Report("Fail-over to a synchronous standby", {"fail-overs": given.rounds})
    for number in range(1, given.rounds + 1):
        for outage in OUTAGES:
            fail_over(report, number, outage)
    report.give(given)


if __name__ == "__main__":
    main()
