"""What a message of kombu's costs PostgreSQL, and what is left of it after the server's crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import kombu as kombu_package
import pytest
from sqlalchemy import text

from timeoutmgr.database import Database
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.transport.sql import SqlTransport, register
from timeoutmgr.transport.sql.wakeups import Wakeup, Watch

kombu: Any = kombu_package  # its annotations are too few to check against
register()

_NOTE_THE_COMMIT = """
CREATE TABLE {prefix}commits (at bigserial, what text, how text);
CREATE FUNCTION {prefix}note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {prefix}commits (what, how)
    VALUES (TG_OP, current_setting('synchronous_commit'));
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER {prefix}noted AFTER INSERT OR UPDATE OR DELETE
ON {prefix}queue_messages DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION {prefix}note();
"""


def connect(url: str, prefix: str, **options: Any) -> Any:
    return kombu.Connection(f"timeoutmgr+{url}", transport_options={"prefix": prefix, **options})


def consume(connection: Any, got: list[Any], **options: Any) -> Any:
    consumer = connection.Consumer([kombu.Queue("q")], on_message=got.append, **options)
    consumer.consume()
    return consumer


def test_a_message_takes_three_statements_each_a_transaction_of_its_own(
    postgres_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: Counter[str] = Counter()
    for name in ("run_alone", "run_pipelined"):
        monkeypatch.setattr(Database, name, _counted(name, getattr(Database, name), used))
    # Nothing is looked at because time has passed.
    patient = {"poll_min": 600, "poll_max": 600, "owner_check": 600}
    with connect(postgres_url, prefix, **patient) as connection:
        got: list[Any] = []
        consume(connection, got)
        producer = connection.Producer(auto_declare=False)
        for _ in range(2):
            used.clear()
            producer.publish({}, routing_key="q")
            connection.drain_events(timeout=10)
            got[-1].ack()

    assert used == {"run_alone": 3}


def test_a_process_checks_its_tables_on_a_server_once(
    postgres_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: Counter[str] = Counter()
    monkeypatch.setattr(SqlTransport, "check", _counted("check", SqlTransport.check, used))
    for name in (prefix, prefix, f"{prefix}other_"):
        with connect(postgres_url, name) as connection:
            connection.SimpleQueue("q").put({})

    assert used["check"] == 2


def _counted(name: str, real: Callable[..., Any], used: Counter[str]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        used[name] += 1
        return real(*arguments)

    return run


def test_a_receiver_looks_no_further_than_the_last_message_until_more_may_have_come() -> None:
    wakeup = Wakeup()
    watch = Watch(wakeup, None, (600, 600), 600)
    watch.before_query()
    watch.found()
    assert watch.may_have_messages()

    watch.found(is_last=True)
    assert not watch.may_have_messages()

    wakeup.notify()
    assert watch.may_have_messages()


def test_only_what_a_broker_may_forget_commits_without_the_disk(
    postgres_url: str, prefix: str
) -> None:
    with connect(postgres_url, prefix) as connection:
        got: list[Any] = []
        consume(connection, got)
        sql: SqlTransport = connection.transport.sql
        with sql.database.begin() as own:
            own.execute(text(_NOTE_THE_COMMIT.format(prefix=prefix)))
        producer = connection.Producer(auto_declare=False)
        for mode in (2, 1):
            for _ in range(2):  # the queue is looked up first, and known then
                producer.publish({}, routing_key="q", delivery_mode=mode)
        connection.drain_events(timeout=10)
        got[0].ack()
        connection.default_channel.basic_get("q", no_ack=True)
        ours = sql.session().receiver("q", prefetch=1)
        sql.session().send([Outgoing("q", Message(id="ours"))])
        ours.ack(ours.receive(1, 0))

        with sql.database.read() as own:
            noted = own.execute(text(f"SELECT what, how FROM {prefix}commits ORDER BY at")).all()

    sent = [("INSERT", "on")] * 2 + [("INSERT", "off")] * 2
    assert noted == [
        *sent,
        *[("UPDATE", "off")] * 4,
        ("DELETE", "off"),
        ("INSERT", "on"),
        ("UPDATE", "on"),
        ("DELETE", "on"),
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_crash_of_the_server_loses_no_message_that_kombu_published(
    private_server: Callable[[str], Any], prefix: str
) -> None:
    server = private_server("postgres")
    got: list[Any] = []
    connection = connect(server.url, prefix)
    consumer = consume(connection, got, prefetch_count=1)
    producer = connection.Producer(auto_declare=False)
    for number in range(2):
        producer.publish(number, routing_key="q")
    connection.drain_events(timeout=10)
    got[0].ack()
    connection.drain_events(timeout=10)
    producer.publish(2, routing_key="q")
    server.kill()
    with pytest.raises(connection.connection_errors):
        got[1].ack()
    server.start()
    connection.close()

    again: list[Any] = []
    with connect(server.url, prefix) as connection:
        consumer = consume(connection, again, prefetch_count=1)
        while [message.payload for message in again][-1:] != [2]:
            connection.drain_events(timeout=30)
            again[-1].ack()
        consumer.cancel()
        left = connection.default_channel.basic_get("q")

    assert [message.payload for message in again] in ([1, 2], [0, 1, 2])
    assert left is None


def test_an_undone_statement_leaves_its_connection_fit_for_use(
    postgres_url: str, prefix: str
) -> None:
    with connect(postgres_url, prefix) as connection:
        database: Database = connection.transport.sql.database
        began: list[object] = []

        def work(transaction: Any) -> None:
            began.append(transaction)
            raise KeyError("of the caller")

        for _ in range(20):
            with pytest.raises(KeyError):
                database.run_pipelined(work)
        database.ping()

        assert len(began) == 20
        assert database.connections()[0] == 0
