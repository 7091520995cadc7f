"""A PostgreSQL primary dies and its standby is promoted; the URL names both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import URL, make_url, text

from tests.services.postgres import PrivateStandby
from tests.support.waiting import eventually
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.cli.doctor.findings import ok
from timeoutmgr.cli.doctor.standbys import standby_findings
from timeoutmgr.contracts.reports import Finding, Level
from timeoutmgr.database import Database
from timeoutmgr.errors import DeliveryUnknown, StorageUnavailable, TransportUnavailable
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import Inbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]
PATIENCE = 60.0
SOON = timedelta(seconds=1)
LATER = timedelta(hours=1)


class Shop:
    """An endpoint whose URL names a primary and its standby."""

    def __init__(self, standby: PrivateStandby, name: str, stack: ExitStack) -> None:
        self.standby = standby
        self.name = name
        self.inbox = Inbox()
        self._stack = stack

    def endpoint(self) -> Endpoint:
        """Return an endpoint that runs."""
        config = EndpointConfiguration(self.name)
        config.use_transport(self._url)
        config.use_persistence(self._url)
        config.critical_error_action = "log"
        config.enable_feature(TimeoutManager(poll_interval=SOON))
        config.add_handler("Note", self.inbox)
        endpoint = Endpoint(config)
        self._stack.callback(endpoint.close)
        endpoint.start()
        return endpoint

    def fail_over(self) -> None:
        self.standby.primary.kill()
        self.standby.promote()

    def arrived(self) -> set[str]:
        return {arrival.id for arrival in self.inbox.arrived}

    @property
    def _url(self) -> str:
        ports = f"{self.standby.primary.port},{self.standby.port}"
        query = {"host": "127.0.0.1,127.0.0.1", "port": ports, "target_session_attrs": "read-write"}
        url = make_url("postgresql+psycopg://postgres@/postgres").update_query_dict(query)
        return url.render_as_string(hide_password=False)


@pytest.fixture
def shop(standby: PrivateStandby, unique: str) -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(standby, unique, stack)


def send(endpoint: Endpoint, message_ids: set[str], delay: timedelta = SOON) -> None:
    """Send each message until it is accepted, under one id."""
    for message_id in sorted(message_ids):
        eventually(_accepts(endpoint, message_id, delay), f"{message_id} is accepted", PATIENCE)


def _accepts(endpoint: Endpoint, message_id: str, delay: timedelta) -> Callable[[], bool]:
    def is_accepted() -> bool:
        try:
            endpoint.send_local("Note", 1, delay=delay, message_id=message_id)
        except (DeliveryUnknown, TransportUnavailable, StorageUnavailable):
            return False
        return True

    return is_accepted


def test_a_fail_over_to_a_synchronous_standby_loses_nothing_and_makes_no_new_id(shop: Shop) -> None:
    shop.standby.require()
    endpoint = shop.endpoint()
    before = {f"before-{number}" for number in range(20)}
    behind = {f"behind-{number}" for number in range(20)}
    send(endpoint, before)

    shop.fail_over()
    send(endpoint, behind)

    eventually(lambda: shop.arrived() >= before | behind, "all have arrived", PATIENCE)
    assert shop.arrived() == before | behind


def test_a_fail_over_to_an_asynchronous_standby_loses_what_it_had_not_received(
    shop: Shop,
) -> None:
    endpoint = shop.endpoint()
    received = {f"received-{number}" for number in range(5)}
    lagging = {f"lagging-{number}" for number in range(5)}
    send(endpoint, received, LATER)
    eventually(lambda: endpoint.timeouts.count() == 5, "all are stored", PATIENCE)
    shop.standby.catch_up()
    shop.standby.stop()
    send(endpoint, lagging, LATER)
    eventually(lambda: endpoint.timeouts.count() == 10, "all are stored", PATIENCE)

    shop.standby.primary.kill()
    shop.standby.start()
    shop.standby.promote()
    send(endpoint, {"behind"}, LATER)

    def left() -> set[str]:
        return {one.message_id for one in endpoint.timeouts.list()}

    eventually(lambda: "behind" in left(), "the endpoint works on", PATIENCE)
    assert left() == {*received, "behind"}


@contextmanager
def _database(url: URL) -> Iterator[Database]:
    database = Database(url.render_as_string(hide_password=False))
    yield database
    database.dispose()


def test_doctor_warns_while_no_commit_waits_for_a_standby(standby: PrivateStandby) -> None:
    alone = make_url(standby.primary.url)
    with _database(alone) as owner:
        with owner.begin() as connection:
            connection.execute(text("CREATE ROLE plain LOGIN"))
        [asynchronous] = standby_findings(owner)
        standby.require()
        [synchronous] = standby_findings(owner)
    hasty = alone.update_query_dict({"options": "-csynchronous_commit=local"})
    findings: list[Finding] = []
    for url in (hasty, alone.set(username="plain")):
        with _database(url) as other:
            findings.extend(standby_findings(other))

    assert asynchronous.level is Level.WARN
    assert "no commit waits for a standby: walreceiver (" in asynchronous.text
    assert synchronous == ok("fail-over", "each commit waits for a synchronous standby")
    assert [each.level for each in findings] == [Level.WARN, Level.OK]
    assert "GRANT pg_read_all_stats" in findings[1].text
