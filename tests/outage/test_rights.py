"""A missing right is an outage: every message is delivered once the right is there again.

Another role, with tables of its own, has a store of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from tests.acceptance.place import Party
from tests.outage.conftest import MakePlace
from tests.support.clock import FakeClock
from tests.support.waiting import eventually
from timeoutmgr.database import Database
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.persistence import SqlPersistence, SqlSettings
from timeoutmgr.satellites.housekeeping import Housekeeping
from timeoutmgr.telemetry import Counters

_TIMEOUTS = sql.Identifier("timeoutmgr_timeouts")


@pytest.mark.parametrize(
    ("right", "met"), [("INSERT", "storage_failures"), ("SELECT", "polls_failed")]
)
def test_good_messages_wait_for_a_right_that_is_missing(
    make_place: MakePlace, rabbitmq_url: str, postgres_url: str, unique: str, right: str, met: str
) -> None:
    with _role(postgres_url, unique) as (url, owner):
        party = Party(make_place(transport=rabbitmq_url, store=url)).start()
        words = {"right": sql.SQL(right), "table": _TIMEOUTS, "role": sql.Identifier(unique)}

        owner.execute(sql.SQL("REVOKE {right} ON {table} FROM {role}").format(**words))
        sent = [party.endpoint.send_local("Ping", n, delay=0.1) for n in range(16)]
        eventually(lambda: party.telemetry.counted(met) > 0, "the outage is met")
        owner.execute(sql.SQL("GRANT {right} ON {table} TO {role}").format(**words))
        for each in sent:
            party.inbox.wait_for_id(each.message_id)

        assert party.telemetry.counted("moved_to_error") == 0
        assert party.errors.poll() == []
        party.endpoint.close()


def test_timeouts_are_dispatched_where_queues_belong_to_a_role_that_has_such_tables_too(
    make_place: MakePlace, postgres_url: str, unique: str
) -> None:
    with _role(postgres_url, unique) as (url, owner):
        for each in ("CREATE SCHEMA {0} AUTHORIZATION {0}", "ALTER ROLE {0} SET search_path = {0}"):
            owner.execute(sql.SQL(each).format(sql.Identifier(unique)))
        place = make_place(transport=postgres_url, store=postgres_url)
        party = Party(place, persistence=SqlPersistence(url)).start()

        sent = party.endpoint.send_local("Ping", "apart", delay=0.1)

        party.inbox.wait_for_id(sent.message_id)
        party.endpoint.close()


def test_old_rows_are_removed_without_a_right_that_only_background_counts_need(
    postgres_url: str, unique: str
) -> None:
    clock, telemetry = FakeClock(), Counters()
    with _role(postgres_url, unique) as (url, owner):
        owner.execute(f"REVOKE ALL ON timeoutmgr_load_passes FROM {unique}")
        with closing(SqlPersistence(url, settings=SqlSettings(clock="host"))) as persistence:
            store = persistence.timeouts(unique, clock)
            store.cancel("old")
            clock.advance(31 * 86_400)
            keeping = Housekeeping(
                store,
                owner="me",
                ready=lambda: None,
                measure_offset=lambda read: None,
                state=dict,
                telemetry=telemetry,
                monotonic=clock.monotonic,
            )
            with pytest.raises(StorageUnavailable, match="timeoutmgr_load_passes"):
                keeping.keep_house()

            assert telemetry.snapshot()["rows_purged"] == 1
            assert store.find("old") is None


@contextmanager
def _role(url: str, name: str) -> Iterator[tuple[str, psycopg.Connection[object]]]:
    """Yield the URL of a user with the right to use our tables, and a connection of the owner."""
    database = Database(url)
    SqlPersistence(database).install()
    database.dispose()
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    role = sql.Identifier(name)
    with psycopg.connect(plain, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        for kind in ("TABLES", "SEQUENCES"):
            grant = f"GRANT ALL ON ALL {kind} IN SCHEMA public TO {{}}"
            owner.execute(sql.SQL(grant).format(role))
        try:
            yield make_url(url).set(username=name).render_as_string(hide_password=False), owner
        finally:
            owner.execute(sql.SQL("DROP OWNED BY {}").format(role))
            owner.execute(sql.SQL("DROP ROLE {}").format(role))
