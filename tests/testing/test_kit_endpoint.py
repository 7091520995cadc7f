"""The endpoint of the testing kit: stores, sagas, sessions, and any configuration of a user."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tests.testing.kit import START, Shop
from timeoutmgr import (
    BulkInterrupted,
    CancelResult,
    ChangeResult,
    DelayedDeliverySettings,
    Endpoint,
    EndpointConfiguration,
    HandlerContext,
    SendOptions,
    Timeouts,
    ToSend,
)
from timeoutmgr.contracts import DeliveryOptions, RepeatKind
from timeoutmgr.deadletter import DeadLetterQueues
from timeoutmgr.errors import (
    CombinationRefused,
    DelayedDeliveryDisabled,
    FeatureRefused,
    IdInUse,
    InvalidMessage,
    Unsupported,
)
from timeoutmgr.native import NativeDelayedDelivery
from timeoutmgr.persistence import SqlDelayedMessageStore
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing import TimeoutKit, configure

POSTGRES = "postgresql+psycopg://nowhere.invalid/sales"
RABBITMQ = "amqp://localhost:1//"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection."""

    def refuse(*_given: object) -> None:
        raise AssertionError("a testing kit connects to no server")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("transport", "persistence"),
    [(RABBITMQ, POSTGRES), (POSTGRES, POSTGRES), ("redis://localhost:1", POSTGRES)],
)
def test_a_configuration_of_servers_works_unchanged_and_offline(
    transport: str, persistence: str
) -> None:
    shop = Shop(persistence=persistence)
    shop.config.use_transport(transport, accept_loss=transport.startswith("redis"))
    before = dict(vars(shop.config))
    kit = shop.open()

    kit.send_local("Note", 1, delay=timedelta(days=14))
    kit.advance(days=14)

    assert shop.bodies == [1]
    assert vars(shop.config) == before


def test_a_configuration_that_an_endpoint_refuses_is_refused() -> None:
    shop = Shop(RABBITMQ)

    with pytest.raises(CombinationRefused, match="without a persistence"):
        shop.open()
    shop.config.use_persistence(POSTGRES)
    shop.config.transaction_mode = "transaction_scope"
    with pytest.raises(CombinationRefused, match="transaction_scope"):
        shop.open()
    shop.config.transaction_mode = None
    shop.config.use_external_timeout_manager("other.Timeouts")
    with pytest.raises(FeatureRefused):
        shop.open()


def without_delays(config: EndpointConfiguration) -> None:
    config.disable_feature("timeout-manager")


def native(config: EndpointConfiguration) -> None:
    config.disable_feature("timeout-manager")
    config.enable_feature(NativeDelayedDelivery())


def external(config: EndpointConfiguration) -> None:
    config.disable_feature("timeout-manager")
    config.use_external_timeout_manager("scheduler.Timeouts")


def delayed_store(config: EndpointConfiguration) -> None:
    config.disable_feature("timeout-manager")
    store = SqlDelayedMessageStore("sqlite:///nowhere/delayed.db")
    config.use_transport(RABBITMQ, delayed_delivery=DelayedDeliverySettings(store))


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("change", [native, external, delayed_store])
def test_delays_that_something_else_stores_are_stored_by_the_kit(
    change: Callable[[EndpointConfiguration], None],
) -> None:
    shop = Shop(RABBITMQ)
    change(shop.config)
    kit = shop.open()

    kit.send_local("Note", 1, delay=timedelta(days=14))
    kit.assert_scheduled("Note", due=timedelta(days=14))
    with pytest.raises(Unsupported, match="listing, cancelling or rescheduling here"):
        _ = kit.endpoint.timeouts
    kit.advance(days=14)

    assert shop.bodies == [1]


@pytest.mark.parametrize(
    "call", [Timeouts.pause, Timeouts.audit, lambda timeouts: timeouts.bulk.list()]
)
def test_pauses_bulk_runs_and_the_audit_are_unsupported_here(
    call: Callable[[Timeouts], object],
) -> None:
    shop = Shop(POSTGRES, POSTGRES)

    with pytest.raises(Unsupported, match="MemoryTimeoutStore"):
        call(shop.open().endpoint.timeouts)


def test_an_endpoint_that_can_delay_nothing_delays_nothing_here() -> None:
    shop = Shop(RABBITMQ)
    without_delays(shop.config)
    kit = shop.open()

    with pytest.raises(DelayedDeliveryDisabled):
        kit.send_local("Note", 1, delay=1)
    kit.send_local("Note", 2)
    kit.drain()

    assert shop.bodies == [2]
    assert kit.scheduled() == []


def test_a_send_only_endpoint_schedules_and_has_no_queue_of_its_own() -> None:
    config = EndpointConfiguration("web")
    config.use_transport(RABBITMQ)
    config.send_only()
    config.use_external_timeout_manager("sales.Timeouts")
    kit = TimeoutKit(config, start=START)

    kit.send("sales", "Note", 1, delay=60, saga_id="A7")
    kit.assert_scheduled("Note", saga="A7", due=timedelta(minutes=1))
    with pytest.raises(InvalidMessage, match="send-only"):
        kit.send_local("Note", 1)
    kit.advance(minutes=1)

    assert [one.destination for one in kit.sent()] == ["sales"]


def test_options_of_deliveries_are_accepted_and_keep_no_copies() -> None:
    shop = Shop(POSTGRES, POSTGRES)
    shop.config.enable_feature(DeadLetterQueues(node="one"))
    kit = shop.open()

    kit.send_local("Note", 1, delivery=DeliveryOptions(), delay=1)
    kit.advance(seconds=1)

    assert shop.bodies == [1]


def test_an_endpoint_made_of_the_same_configuration_before_does_not_matter() -> None:
    config = configure("sales", features=[TimeoutManager()])
    with Endpoint(config):
        kit = TimeoutKit(config)

    kit.send_local("Any", 1)
    assert kit.endpoint.name == "sales"


def test_a_message_can_be_cancelled_listed_and_rescheduled_as_soon_as_it_is_sent() -> None:
    shop = Shop()
    kit = shop.open()
    timeouts = kit.endpoint.timeouts
    first = kit.send_local("Note", 1, delay=60)
    second = kit.send_local("Note", 2, delay=60)
    assert first.id is not None
    assert second.id is not None

    assert {one.id for one in timeouts.list()} == {first.id, second.id}
    assert [one.timeout_id for one in kit.scheduled()] == [first.id, second.id]
    assert timeouts.cancel(first.id) is CancelResult.CANCELLED
    assert timeouts.reschedule(second.id, delay=120) is ChangeResult.CHANGED
    kit.advance(seconds=119)
    assert shop.bodies == []
    kit.advance(seconds=1)

    assert shop.bodies == [2]
    assert timeouts.cancel(second.id) is CancelResult.TOO_LATE


def test_a_clear_forgets_the_timeouts_that_were_sent_before_it_at_the_same_instant() -> None:
    shop = Shop()

    @shop.config.handler("Restart")
    def restart(body: object, context: HandlerContext) -> None:
        context.send_local("Note", "before", delay=60, saga_id="A7")
        context.clear_timeouts("A7")
        context.send_local("Note", "after", delay=60, saga_id="A7")

    kit = shop.open()
    kit.send_local("Note", "first", delay=60, saga_id="A7")
    kit.endpoint.clear_timeouts("A7")
    kit.send_local("Note", "second", delay=60, saga_id="A7")
    assert [one.body for one in kit.scheduled()] == ["second"]

    kit.send_local("Restart", 1)
    kit.advance(minutes=1)

    assert shop.bodies == ["after"]


def test_a_message_replaces_another_of_its_id_at_the_same_instant() -> None:
    shop = Shop()
    kit = shop.open()
    kit.send_local("Note", "old", delay=60, message_id="one")
    kit.send_local("Note", "new", delay=60, message_id="one", on_conflict="replace")

    kit.advance(minutes=1)

    assert shop.bodies == ["new"]


def test_send_many_and_store_many_are_handled_too() -> None:
    shop = Shop()
    kit = shop.open()
    kit.endpoint.send_many([ToSend("sales", "Note", number) for number in range(3)])
    kit.endpoint.store_many([ToSend("sales", "Note", 3, SendOptions(delay=60))])

    kit.advance(minutes=1)

    assert shop.bodies == [0, 1, 2, 3]


def test_a_bulk_of_something_else_is_refused_as_by_any_endpoint() -> None:
    wrong: Any = 5

    with pytest.raises(BulkInterrupted, match="a bulk is made of ToSend, got 5"):
        Shop().open().endpoint.send_many([wrong])


def test_a_session_sends_with_its_commit_and_not_with_its_rollback(memory: Engine) -> None:
    kit = Shop().open()
    with Session(memory) as session:
        kit.send_local("Note", "rolled back", delay=60, session=session)
        session.rollback()
        with session.begin_nested() as savepoint:
            kit.send_local("Note", "in a savepoint that is undone", delay=60, session=session)
            savepoint.rollback()
        with session.begin_nested():
            kit.send_local("Note", "in a savepoint", delay=60, session=session)
        kit.send_local("Note", "committed", delay=60, session=session)
        kit.assert_not_scheduled()
        session.commit()

        assert [one.body for one in kit.scheduled()] == ["in a savepoint", "committed"]
        session.commit()
        assert len(kit.scheduled()) == 2


def test_a_session_that_is_closed_and_used_again_sends_only_what_it_commits(
    memory: Engine,
) -> None:
    kit = Shop().open()
    with Session(memory) as session:
        kit.send_local("Note", "closed", delay=60, session=session)
        session.close()
        with session.begin_nested():
            kit.send_local("Note", "committed", delay=60, session=session)
        session.commit()

    assert [one.body for one in kit.scheduled()] == ["committed"]


def test_a_connection_sends_with_its_commit(memory: Engine) -> None:
    kit = Shop().open()
    with memory.begin() as connection:
        kit.send_local("Note", "committed", delay=60, session=connection)
        kit.assert_not_scheduled()

    kit.assert_scheduled("Note")


def test_a_commit_of_a_connection_that_stays_open_sends_what_it_committed(memory: Engine) -> None:
    kit = Shop().open()
    with memory.connect() as connection:
        kit.send_local("Note", "in the transaction of the send", delay=60, session=connection)
        connection.commit()
        assert [one.body for one in kit.scheduled()] == ["in the transaction of the send"]
        kit.send("mail", "Letter", "rolled back", session=connection)
        connection.rollback()
        kit.send("mail", "Letter", "committed", session=connection)
        connection.commit()

        assert [one.body for one in kit.sent()] == ["committed"]


def test_a_connection_sends_nothing_of_a_savepoint_that_it_rolled_back(memory: Engine) -> None:
    kit = Shop().open()
    with memory.connect() as connection:
        with connection.begin(), connection.begin_nested() as first:
            kit.send("mail", "Letter", "in the first savepoint", session=connection)
            first.rollback()
        with connection.begin():
            kit.send("mail", "Letter", "before", session=connection)
            with connection.begin_nested() as undone:
                kit.send("mail", "Letter", "undone", session=connection)
                with connection.begin_nested():
                    kit.send("mail", "Letter", "undone with that around", session=connection)
                undone.rollback()
            with connection.begin_nested():
                kit.send("mail", "Letter", "kept", session=connection)

    assert [one.body for one in kit.sent()] == ["before", "kept"]


def test_a_session_is_answered_at_once_about_a_used_id(memory: Engine) -> None:
    kit = Shop(persistence="sqlite:////nowhere/shop.db").open()

    def send(session: Session, body: object, on_conflict: Any = None) -> RepeatKind | None:
        options = SendOptions(delay=60, message_id="m", on_conflict=on_conflict)
        return kit.send_local("Note", body, options, session=session).repeat

    with Session(memory) as session:
        answers = [send(session, 1)]
        session.commit()
        answers += [send(session, 1), send(session, 2), send(session, 3, "replace")]
        with pytest.raises(IdInUse):
            send(session, 4, "error")
        session.commit()
    kit.drain()

    assert answers == [None, RepeatKind.DUPLICATE, RepeatKind.CONFLICT, RepeatKind.REPLACED]
    assert [one.body for one in kit.scheduled()] == [3]
    assert kit.errors == []


def test_an_id_can_be_used_again_after_its_tombstone_has_expired() -> None:
    shop = Shop()
    kit = shop.open()
    for month in (1, 2):
        kit.send_local("Note", month, delay=60, message_id="monthly")
        kit.advance(days=31)

    assert shop.bodies == [1, 2]


def test_what_is_no_open_transaction_is_refused_as_in_production(memory: Engine) -> None:
    kit = Shop().open()
    wrong: Any = memory

    with (
        memory.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(CombinationRefused, match="AUTOCOMMIT"),
    ):
        kit.send_local("Note", 1, session=connection)
    with pytest.raises(Unsupported, match="Give a session or a connection of SQLAlchemy"):
        kit.send_local("Note", 1, session=wrong)


def test_a_session_is_refused_where_no_part_of_the_user_is_in_a_database(memory: Engine) -> None:
    config = configure("sales", features=[TimeoutManager()])
    kit = TimeoutKit(config)

    with Session(memory) as session, pytest.raises(CombinationRefused):
        kit.send_local("Note", 1, delay=60, session=session)


def test_the_endpoint_starts_and_closes_without_an_effect() -> None:
    shop = Shop()
    kit = shop.open()

    with kit.endpoint as endpoint:
        endpoint.install()
        endpoint.run()
        endpoint.wait()
        endpoint.send_local("Note", 1)
    kit.drain()

    assert shop.bodies == [1]


def test_messages_for_other_endpoints_are_kept_in_order() -> None:
    kit = Shop().open()
    kit.send("mail", "Letter", {"to": "A"})
    kit.send("billing", "Bill", {"to": "B"}, delay=60)
    kit.send("mail", "Letter", {"to": "C"})
    kit.send_local("Note", 1)

    assert [(one.destination, one.type, one.body) for one in kit.sent()] == [
        ("mail", "Letter", {"to": "A"}),
        ("mail", "Letter", {"to": "C"}),
    ]
    kit.advance(minutes=1)
    assert [one.destination for one in kit.sent()] == ["mail", "mail", "billing"]
    assert [one.body["to"] for one in kit.sent(destination="mail")] == ["A", "C"]


def test_a_program_that_does_not_test_imports_nothing_of_the_kit() -> None:
    code = (
        "import sys, timeoutmgr, timeoutmgr.satellites\n"
        "timeoutmgr.Endpoint, timeoutmgr.EndpointConfiguration\n"
        "assert not [name for name in sys.modules if name.startswith('timeoutmgr.testing')]\n"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
