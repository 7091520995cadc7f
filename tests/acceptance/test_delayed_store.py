"""A delayed message rests in the delayed message store, and is delivered when it is due."""

from __future__ import annotations

from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest
from sqlalchemy import create_engine

from tests.acceptance.delayed import DelayedParty
from tests.acceptance.matrix import REFERENCE, REPRESENTATIVE, Pair, matrix
from tests.acceptance.place import LATER, Place
from tests.support.waiting import eventually
from timeoutmgr import RecoverabilitySettings, TransactionMode
from timeoutmgr.errors import SchemaMissing, StorageUnavailable
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.routes import DELAYED, to_delayed_store
from timeoutmgr.persistence import SqlDelayedMessageStore

SOON = timedelta(seconds=0.4)
SLOW_ENOUGH = timedelta(seconds=2)
"""A delay after which a message that is awaited in the store is not due yet."""
ONE_FILE, ONE_DATABASE = Pair("sqlite", "sqlite"), Pair("postgres", "postgres")
NONE = TransactionMode.NONE
EVERY_MODE = (
    *REPRESENTATIVE,
    *(
        Pair(kind, kind, mode)
        for kind in ("sqlite", "postgres", "mysql")
        for mode in (TransactionMode.RECEIVE_ONLY, TransactionMode.SENDS_ATOMIC_WITH_RECEIVE)
    ),
    Pair("sqlite", "sqlite", NONE),
    Pair("rabbitmq", "postgres", NONE),
)


@matrix(pairs=EVERY_MODE)
@pytest.mark.behaviour(24, 26)
def test_a_delayed_message_arrives_whole_at_its_due_time(place: Place) -> None:
    party = DelayedParty(place).start()

    sent = party.endpoint.send_local(
        "Ping", {"who": "naïve"}, delay=SLOW_ENOUGH, headers={"own": "ä"}
    )
    party.wait_until_stored(1)

    arrival = party.inbox.wait_for_id(sent.message_id)
    assert arrival.lateness >= 0
    assert arrival.body == {"who": "naïve"}
    assert arrival.headers["own"] == "ä"
    ours = {headers.EXPIRE, headers.DESTINATION, headers.DELAYED_DESTINATION}
    assert not ours & set(arrival.headers)
    party.wait_until_stored(0)
    assert len(party.inbox.arrived) == 1


@matrix(pairs=EVERY_MODE)
@pytest.mark.behaviour(45, 88)
def test_many_messages_of_one_instant_all_come_once(place: Place) -> None:
    count = 1000 if place.pair in (REFERENCE, *_OF_ONE_FILE) else 200
    party = DelayedParty(place).start()
    due = party.config.clock.now() + 2_500_000
    ids = [f"{place.name}-{n}" for n in range(count)]
    sent = [_delayed(place, one, due) for one in ids]

    for start in range(0, count, 200):
        place.session.send(sent[start : start + 200])

    party.inbox.wait_for(count)
    assert sorted(arrival.id for arrival in party.inbox.arrived) == sorted(ids)
    assert min(arrival.lateness for arrival in party.inbox.arrived) >= 0
    party.wait_until_stored(0)


_OF_ONE_FILE = tuple(pair for pair in EVERY_MODE if pair.transport == pair.store == "sqlite")


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(38)
def test_an_earlier_message_comes_on_time_while_a_later_message_is_pending(place: Place) -> None:
    party = DelayedParty(place).start()
    party.endpoint.send_local("Ping", "late", delay=timedelta(seconds=120))
    party.wait_until_stored(1)

    early = party.endpoint.send_local("Ping", "early", delay=SOON)

    assert party.inbox.wait_for_id(early.message_id).lateness >= 0
    party.wait_until_stored(1)


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(25)
def test_a_message_due_already_comes_at_once_and_is_never_stored(place: Place) -> None:
    party = DelayedParty(place).start()

    sent = party.endpoint.send_local("Ping", 1, delay=0)

    party.inbox.wait_for_id(sent.message_id)
    party.telemetry.wait_for("delayed_dispatched", 1)
    assert party.telemetry.counted("delayed_stored") == 0


@matrix(pairs=REPRESENTATIVE)
def test_a_send_only_endpoint_delays_too(place: Place) -> None:
    target = place.queue(f"{place.name}-target")
    party = DelayedParty(place, send_only=True).start()

    sent = party.endpoint.send(target, "Ping", 1, delay=SLOW_ENOUGH)
    party.wait_until_stored(1)

    message = place.received(target).wait_for_id(sent.message_id)
    assert headers.REPLY_TO not in message.headers
    assert place.session.missing_queues([party.name]) == [party.name]


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(64, 91)
def test_a_missing_destination_costs_its_neighbours_nothing(place: Place) -> None:
    party = DelayedParty(place, delayed={"number_of_retries": 3}, check_destinations=False).start()
    missing = place.queue(f"{place.name}-gone")
    place.session.delete_queues([missing])
    lost = party.endpoint.send(missing, "Ping", {"who": "naïve"}, delay=SOON)
    fine = [party.endpoint.send_local("Ping", n, delay=SOON) for n in range(3)]

    copy = party.errors.wait_for_id(lost.message_id)

    for each in fine:
        assert party.inbox.wait_for_id(each.message_id).lateness >= 0
    assert copy.body == b'{"who": "na\xc3\xafve"}'
    assert copy.headers[headers.FAILED_QUEUE] == missing
    assert copy.headers[headers.EXCEPTION_TYPE].endswith("Unroutable")
    party.wait_until_stored(0)


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(91)
def test_without_destination_and_error_queue_the_message_stays_stored(place: Place) -> None:
    party = DelayedParty(place, check_destinations=False).start()
    missing = place.queue(f"{place.name}-gone")
    place.session.delete_queues([missing, party.config.error_queue])
    lost = party.endpoint.send(missing, "Ping", {}, delay=SOON)
    fine = party.endpoint.send_local("Ping", {}, delay=SOON)

    party.inbox.wait_for_id(fine.message_id)
    party.telemetry.wait_for("recovery_failures", 1)
    party.wait_until_stored(1)

    place.queue(missing)

    assert place.received(missing).wait_for_id(lost.message_id).id == lost.message_id
    party.wait_until_stored(0)


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(49)
def test_a_stored_message_outlives_the_endpoint(place: Place) -> None:
    first = DelayedParty(place)
    target = place.queue(f"{place.name}-target")
    first.endpoint.start()
    sent = first.endpoint.send(target, "Ping", 1, delay=SLOW_ENOUGH)
    first.wait_until_stored(1)
    first.endpoint.close()

    DelayedParty(place).start()

    assert place.received(target).wait_for_id(sent.message_id)


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(47)
def test_two_competing_endpoints_deliver_each_message_once(place: Place) -> None:
    target = place.queue(f"{place.name}-target")
    parties = [DelayedParty(place, delayed={"batch": 7}).start() for _ in range(2)]
    due = parties[0].config.clock.now() + 1_500_000
    ids = [f"{place.name}-{n}" for n in range(120)]

    place.session.send([_delayed(place, one, due, target) for one in ids])

    arrived = place.received(target).wait_for(len(ids))
    assert sorted(message.id for message in arrived) == sorted(ids)
    parties[0].wait_until_stored(0)
    assert len(place.received(target).poll()) == 0


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(127)
def test_a_failing_handler_is_retried_through_the_store(place: Place) -> None:
    party = DelayedParty(
        place,
        recoverability=RecoverabilitySettings(
            immediate=1, delayed=2, increase=timedelta(milliseconds=100)
        ),
    )
    failures: list[str] = []

    def fail_twice(_body: object, context: Any) -> None:
        failures.append(context.message_id)
        if len(failures) < 3:
            raise RuntimeError("not yet")

    party.config.add_handler("Flaky", fail_twice)
    party.start()

    sent = party.endpoint.send_local("Flaky", 1)

    eventually(lambda: len(failures) == 3, "it is retried twice")
    assert set(failures) == {sent.message_id}
    party.wait_until_stored(0)


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(41)
def test_a_message_sent_in_a_callers_transaction_exists_if_the_transaction_commits(
    place: Place,
) -> None:
    party = DelayedParty(place).start()
    engine = create_engine(place.store_url)
    with engine.connect() as connection:
        kept = party.endpoint.send_local("Ping", "kept", delay=SOON, session=connection)
        connection.commit()
        undone = party.endpoint.send_local("Ping", "undone", delay=SOON, session=connection)
        connection.rollback()
    engine.dispose()

    assert party.inbox.wait_for_id(kept.message_id).lateness >= 0
    barrier = party.endpoint.send_local("Ping", "barrier", delay=SOON)
    party.inbox.wait_for_id(barrier.message_id)
    assert party.inbox.of(undone.message_id) == []


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(83, 123)
def test_without_installers_a_missing_table_ends_the_start(place: Place) -> None:
    party = DelayedParty(place)
    party.endpoint.install()
    other = DelayedParty(
        place,
        store=SqlDelayedMessageStore(place.store_url, table=f"{place.name} none"),
        install=False,
    )

    with pytest.raises(SchemaMissing, match="timeoutmgr install"):
        other.endpoint.start()


class Failing(SqlDelayedMessageStore):
    """Fails in the named method, with the given error."""

    failing: tuple[str, ...] = ()
    error: Exception = StorageUnavailable("the test wants it so")

    def _may_fail(self, method: str) -> None:
        if method in self.failing:
            raise self.error

    def next(self) -> Any:
        self._may_fail("next")
        return super().next()

    def store_many(self, *arguments: Any, **options: Any) -> None:
        self._may_fail("store")
        super().store_many(*arguments, **options)

    def fetch_due(self, *arguments: Any, **options: Any) -> Any:
        self._may_fail("fetch")
        return super().fetch_due(*arguments, **options)

    def remove_many(self, *arguments: Any, **options: Any) -> int:
        self._may_fail("remove")
        return super().remove_many(*arguments, **options)

    def increment_failure_count(self, *arguments: Any, **options: Any) -> bool:
        self._may_fail("increment")
        return super().increment_failure_count(*arguments, **options)


_ONE_SECOND = timedelta(seconds=1)
_BREAKERS = {
    "time_to_trigger_store_circuit_breaker": _ONE_SECOND,
    "time_to_trigger_fetch_circuit_breaker": _ONE_SECOND,
    "maximum_recovery_failures_per_second": 0.05,
}


@matrix(pairs=(ONE_FILE,))
@pytest.mark.parametrize(
    ("failing", "sentence"),
    [
        ("store", "Failed to store delayed message"),
        ("fetch", "Failed to fetch due delayed messages from the storage"),
    ],
)
@pytest.mark.behaviour(69, 78)
def test_an_outage_of_the_store_is_a_critical_error_and_loses_nothing(
    place: Place, failing: str, sentence: str
) -> None:
    store = Failing(place.store_url)
    party = DelayedParty(place, store=store, delayed=_BREAKERS)
    reported: SimpleQueue[str] = SimpleQueue()
    party.config.define_critical_error_action(lambda context: reported.put(context.error))
    party.start()
    store.failing = (failing, "next")

    # A message that is due when it is received goes straight on, without the store.
    sent = party.endpoint.send_local("Ping", 1, delay=timedelta(seconds=2))

    while reported.get(timeout=50) != sentence:
        pass  # the poller has noticed the outage too
    assert party.inbox.arrived == []
    store.failing = ()
    assert party.inbox.wait_for_id(sent.message_id, timeout=50)


@matrix(pairs=(ONE_FILE, REFERENCE))
@pytest.mark.behaviour(93)
def test_error_handling_that_keeps_failing_is_a_critical_error_and_loses_nothing(
    place: Place,
) -> None:
    store = Failing(place.store_url)
    store.error = RuntimeError("the test wants it so")
    party = DelayedParty(place, store=store, delayed=_BREAKERS)
    reported: SimpleQueue[str] = SimpleQueue()
    party.config.define_critical_error_action(lambda context: reported.put(context.error))
    party.start()
    store.failing = ("remove", "increment")

    sent = party.endpoint.send_local("Ping", 1, delay=SOON)

    assert (
        reported.get(timeout=50)
        == "Failed to execute error handling for delayed message forwarding"
    )
    store.failing = ()
    assert party.inbox.wait_for_id(sent.message_id, timeout=50)
    if party.place.pair is ONE_FILE:
        assert len(party.inbox.arrived) == 1
        assert party.errors.poll() == []


@matrix(pairs=REPRESENTATIVE)
@pytest.mark.behaviour(90)
def test_an_unstorable_message_goes_to_the_error_queue(place: Place) -> None:
    store = Failing(place.store_url)
    store.error = RuntimeError("the test wants it so")
    store.failing = ("store",)
    party = DelayedParty(place, store=store).start()

    sent = party.endpoint.send_local("Ping", 1, delay=LATER)

    copy = party.errors.wait_for_id(sent.message_id)
    assert copy.headers[headers.FAILED_QUEUE] == party.name + DELAYED
    assert copy.headers[headers.EXPIRE]
    assert party.stored() == 0


def _delayed(place: Place, one: str, due: int, target: str | None = None) -> Outgoing:
    own = {
        headers.MESSAGE_ID: one,
        headers.ENCLOSED_MESSAGE_TYPES: "Ping",
        headers.TIME_SENT: to_wire(due),
    }
    message = Message(id=one, headers=own, body=b"1")
    return to_delayed_store(Outgoing(target or place.name, message), due, place.name + DELAYED)
