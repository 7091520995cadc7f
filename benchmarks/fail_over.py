"""How soon an endpoint works again after its PostgreSQL primary died and the standby was promoted.

Queue and store are in one PostgreSQL, whose URL names the primary and a synchronous standby.
Delayed messages are sent continuously, each repeatedly until it is accepted. The primary is killed,
the standby is promoted, and both intervals count from the end of the promotion: until the first
message is accepted, and until a handler gets the first message. In the end all accepted messages
must have arrived.
"""

import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.figures import say
from harness.report import Report, options, parsed
from harness.traffic import Traffic
from sqlalchemy import make_url

from tests.services.postgres import PrivatePostgres, PrivateStandby

SOON = 5.0
"""Maximum seconds until work resumes."""
BEFORE, BEHIND = 3.0, 12.0
"""Seconds of sending before the kill, and after the promotion."""
OUTAGES = (0.0, 20.0)
"""Seconds between the kill and the promotion: the pauses between attempts grow meanwhile."""


@contextmanager
def pair() -> Iterator[PrivateStandby]:
    """Start a primary and a standby for which each commit waits; remove both at the end."""
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
    say(f"{name}: accepted after {accepted:.2f} s, handled after {handled:.2f} s")
    beside = f"{len(traffic.accepted)} accepted, {traffic.repeats} repeated"
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
