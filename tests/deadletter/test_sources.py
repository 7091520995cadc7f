"""Where dead letters come from: each way to die leaves its class, on the node where it happened."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from tests.deadletter.making import ids
from tests.deadletter.scene import PATIENCE, Scene
from tests.support.makers import a_message
from tests.support.waiting import eventually
from timeoutmgr import Limits
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.database import Database
from timeoutmgr.deadletter import (
    AcknowledgeLevel,
    DeadLetterStore,
    DeliveryOptions,
    JournalLevel,
    MessageClass,
    NodeQueue,
    Rejected,
    StoredCopyQueue,
)
from timeoutmgr.deadletter import delivery_headers as marks
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.errors import InvalidMessage, MessageRejected
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_wire

MODES = [
    TransactionMode.TRANSACTION_SCOPE,
    TransactionMode.SENDS_ATOMIC_WITH_RECEIVE,
    TransactionMode.RECEIVE_ONLY,
]
DEAD = JournalLevel.DEADLETTER
WANTED = {marks.JOURNAL: "1"}


@pytest.fixture(params=MODES, ids=lambda mode: mode.value)
def scene(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(sqlite_url, stack, request.param)


@pytest.fixture
def one_scene(sqlite_url: str) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(sqlite_url, stack)


def reject(_body: Any, _context: HandlerContext) -> None:
    raise MessageRejected("not for me")


def accept(_body: Any, _context: HandlerContext) -> None:
    return


@pytest.mark.behaviour(104)
def test_a_missing_destination_leaves_a_dead_letter_and_no_error_copy(scene: Scene) -> None:
    sales = scene.endpoint("sales", "n1", {})

    sent = sales.send("nowhere", "Hello", {"n": 1}, delay=0)

    [copy] = scene.until_dead("n1")
    assert copy.message.id == sent.message_id
    assert copy.message.body == b'{"n": 1}'
    assert (copy.destination, copy.source) == ("nowhere", "sales")
    assert copy.message_class == MessageClass.NACK_BAD_DST_Q
    assert "no queue 'nowhere'" in copy.reason
    assert copy.attempts == 1
    eventually(lambda: sales.timeouts.count() == 0, "the timeout is closed", PATIENCE)
    assert scene.session.count("error") == 0


@pytest.mark.behaviour(100)
def test_a_message_of_level_none_goes_to_the_error_queue_as_ever(scene: Scene) -> None:
    sales = scene.endpoint("sales", "n1", {})

    sales.send("nowhere", "Hello", 1, delay=0, delivery=DeliveryOptions(journal=JournalLevel.NONE))

    scene.until_failed()
    assert scene.nothing_is_dead("n1")


@pytest.mark.behaviour(104)
def test_a_handler_that_rejects_leaves_it_dead_on_its_own_node(scene: Scene) -> None:
    scene.endpoint("billing", "n2", {"Hello": reject})
    sales = scene.endpoint("sales", "n1", {})

    sales.send("billing", "Hello", 1)

    [copy] = scene.until_dead("n2")
    assert copy.message_class == MessageClass.NACK_RECEIVE_REJECTED
    assert copy.reason == "not for me"
    assert scene.nothing_is_dead("n1")
    eventually(lambda: scene.session.count("billing") == 0, "it has left its queue", PATIENCE)
    assert scene.session.count("error") == 0


@pytest.mark.parametrize(
    "ended",
    [MessageClass.NACK_BAD_SIGNATURE, MessageClass.NACK_BAD_ENCRYPTION, 0x8004],
)
def test_a_hook_says_of_which_class_a_message_dies(one_scene: Scene, ended: int) -> None:
    def check(_body: Any, _context: HandlerContext) -> None:
        raise Rejected(ended, "does not match")

    sales = one_scene.endpoint("sales", "n1", {"Hello": check})

    sales.send_local("Hello", 1)

    assert [one.message_class for one in one_scene.until_dead("n1")] == [ended]


def test_a_bug_in_a_handler_is_the_error_queues_business(one_scene: Scene) -> None:
    def broken(_body: Any, _context: HandlerContext) -> None:
        raise KeyError("a bug")

    sales = one_scene.endpoint("sales", "n1", {"Hello": broken})

    sales.send_local("Hello", 1)

    one_scene.until_failed()
    assert one_scene.nothing_is_dead("n1")


@pytest.mark.behaviour(100, 103)
def test_a_message_received_too_late_leaves_a_dead_letter_if_its_sender_asked(
    one_scene: Scene,
) -> None:
    handled: list[object] = []
    sales = one_scene.endpoint(
        "sales", "n1", {"Hello": lambda body, _: handled.append(body)}, dead_letter=True
    )
    long_ago = to_wire(0)
    late = {"time_sent": long_ago, "time_to_be_received": "00:00:01"}

    one_scene.put("sales", a_message("plain", b"1", enclosed_message_types="Hello", **late))
    wants = a_message("wants", b"2", enclosed_message_types="Hello", **late)
    one_scene.put("sales", type(wants)(id="wants", headers={**wants.headers, **WANTED}, body=b"2"))
    sales.send_local("Hello", 3)

    [copy] = one_scene.until_dead("n1")
    eventually(lambda: handled == [3], "what is in time is handled", PATIENCE)
    assert copy.message.id == "wants"
    assert copy.message_class == MessageClass.NACK_RECEIVE_TIMEOUT
    assert sales.snapshot()["expired_on_receipt"] == 1


@pytest.mark.behaviour(103)
@pytest.mark.parametrize(
    "feature", [{"discard_expired": False}, {"clock_allowance": timedelta.max}]
)
def test_the_receivers_discarding_can_be_put_off_or_allow_for_clocks(
    one_scene: Scene, feature: dict[str, Any]
) -> None:
    handled = threading.Event()
    one_scene.endpoint("sales", "n1", {"Hello": lambda _body, _: handled.set()}, **feature)

    one_scene.put(
        "sales",
        a_message(
            "m1",
            enclosed_message_types="Hello",
            time_sent=to_wire(0),
            time_to_be_received="00:00:01",
        ),
    )

    assert handled.wait(PATIENCE)


@pytest.mark.behaviour(102)
def test_in_one_transaction_each_message_keeps_its_own_time_to_be_received(
    one_scene: Scene,
) -> None:
    limits: list[str | None] = []

    def send_two(_body: Any, context: HandlerContext) -> None:
        context.send_local("Limited", 1, time_to_be_received=timedelta(hours=1))
        context.send_local("Limited", 2, time_to_be_received=timedelta(hours=2))

    def note(_body: Any, context: HandlerContext) -> None:
        limits.append(context.headers.get(headers.TIME_TO_BE_RECEIVED))

    sales = one_scene.endpoint("sales", "n1", {"Go": send_two, "Limited": note})

    sales.send_local("Go", 1)

    eventually(lambda: len(limits) == 2, "both are received", PATIENCE)
    assert limits == ["01:00:00", "02:00:00"]


@pytest.mark.parametrize(
    ("takes", "transactional", "node", "box", "dies_of"),
    [
        ("nontransactional", True, "n1", NodeQueue.DEADXACT, MessageClass.NACK_NOT_TRANSACTIONAL_Q),
        (
            "transactional",
            False,
            "n2",
            NodeQueue.DEADLETTER,
            MessageClass.NACK_NOT_TRANSACTIONAL_MSG,
        ),
    ],
)
def test_a_message_of_the_wrong_kind_becomes_a_dead_letter_and_the_right_kind_is_handled(
    one_scene: Scene,
    takes: str,
    transactional: bool,
    node: str,
    box: NodeQueue,
    dies_of: MessageClass,
) -> None:
    handled: list[object] = []
    billing = {"Hello": lambda body, _: handled.append(body)}
    one_scene.endpoint("billing", "n2", billing, takes=takes)
    sales = one_scene.endpoint("sales", "n1", {})

    sent = sales.send("billing", "Hello", 1, delivery=DeliveryOptions(transactional=transactional))
    sales.send("billing", "Hello", 2, delivery=DeliveryOptions(transactional=not transactional))

    [copy] = one_scene.until_dead(node, box)
    eventually(lambda: handled == [2], "the other is handled", PATIENCE)
    assert (copy.message.id, copy.message_class) == (sent.message_id, dies_of)


@pytest.mark.behaviour(104)
def test_every_setting_of_a_queue_accepts_a_format_name(one_scene: Scene) -> None:
    received: list[str] = []

    def delay(_body: Any, context: HandlerContext) -> None:
        context.send("DIRECT=OS:n1\\private$\\billing", "Bad", 1, delay=0.1, delivery=asks)

    def note(_body: Any, context: HandlerContext) -> None:
        received.append(context.headers[headers.CORRELATION_ID])

    asks = DeliveryOptions(
        transactional=True,
        journal=DEAD,
        dead_letter_queue="DIRECT=OS:.\\sales.dead",
        acknowledge=AcknowledgeLevel.NACK_RECEIVE,
        admin_queue="DIRECT=TCP:127.0.0.1\\admin",
    )
    one_scene.endpoint("billing", "n1", {"Bad": reject})
    one_scene.endpoint("admin", "n1", {"*": note})
    sales = one_scene.endpoint("sales", "n1", {"Go": delay}, check_destinations=True)

    at_once = sales.send("DIRECT=OS:localhost\\billing", "Bad", 1, delivery=asks).message_id
    sales.send("DIRECT=OS:.\\sales", "Go", 1)

    own = one_scene.box("n1", NodeQueue.DEADXACT, "sales.dead")
    eventually(lambda: own.count() == 2, "both are in the application's queue", PATIENCE)
    eventually(lambda: len(received) == 2, "both are acknowledged", PATIENCE)
    assert at_once in received
    assert sorted(received) == sorted(ids(own))
    assert {copy.destination for copy in own.peek()} == {"billing"}


@pytest.mark.behaviour(101)
def test_a_delayed_message_always_uses_the_dead_letter_queue(one_scene: Scene) -> None:
    one_scene.endpoint("sales", "n1", {})

    one_scene.put("sales.Timeouts", a_message("stranger"))
    one_scene.put("sales.Timeouts", a_message("m1", expire="soon", destination="billing"))

    [copy] = one_scene.until_dead("n1")
    one_scene.until_failed()
    assert (copy.destination, copy.message.id) == ("sales.Timeouts", "m1")
    assert one_scene.session.count("error") == 1  # a message that was not delayed at all


def test_a_destination_outside_the_allow_list_is_denied(
    one_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timeoutmgr import EndpointConfiguration

    made = EndpointConfiguration.__init__

    def limited(self: EndpointConfiguration, name: str) -> None:
        made(self, name)
        self.limits = Limits(allowed_destinations=("sales",))

    monkeypatch.setattr(EndpointConfiguration, "__init__", limited)
    one_scene.endpoint("sales", "n1", {})

    one_scene.put(
        "sales.Timeouts", a_message("m1", expire=to_wire(0), destination="amq.gen-somebody")
    )
    one_scene.put("sales.Timeouts", a_message("m2", expire=to_wire(0), destination="billing"))

    letters = one_scene.until_dead("n1", count=2)
    assert {one.message_class for one in letters} == {MessageClass.NACK_ACCESS_DENIED}


@pytest.mark.behaviour(104)
def test_a_message_that_goes_in_circles_dies_after_fifteen_hops(scene: Scene) -> None:
    handled: list[str | None] = []
    scene.endpoint(
        "sales", "n1", {"Hello": lambda _b, context: handled.append(context.headers[marks.HOPS])}
    )
    for hops in (14, 16):
        message = a_message(
            f"m{hops}",
            expire=to_wire(0),
            destination="sales",
            enclosed_message_types="Hello",
        )
        given = {**message.headers, **WANTED, marks.HOPS: str(hops)}
        scene.put("sales.Timeouts", type(message)(id=message.id, headers=given, body=b"1"))

    [copy] = scene.until_dead("n1")
    eventually(lambda: handled == ["15"], "the other is handled", PATIENCE)
    assert copy.message.id == "m16"
    assert copy.message_class == MessageClass.NACK_HOP_COUNT_EXCEEDED


def test_a_full_dead_letter_queue_leaves_the_message_to_the_error_queue(scene: Scene) -> None:
    sales = scene.endpoint("sales", "n1", {"Hello": reject}, dead_letter_quota=0)

    sales.send("nowhere", "Hello", 1, delay=0)
    sales.send_local("Hello", 2)

    scene.until_failed(2)
    assert scene.nothing_is_dead("n1")
    assert float(sales.snapshot()["dead_letters_over_quota"]) >= 2


@pytest.mark.behaviour(104)
def test_a_transactional_message_is_kept_until_it_is_received(scene: Scene) -> None:
    go = threading.Event()
    handled = threading.Event()

    def wait(_body: Any, _context: HandlerContext) -> None:
        assert go.wait(PATIENCE)
        handled.set()

    scene.endpoint("billing", "n2", {"Hello": wait})
    sales = scene.endpoint("sales", "n1", {})

    sent = sales.send("billing", "Hello", 1, delivery=DeliveryOptions(transactional=True))

    assert scene.awaiting("n1") == [sent.message_id]
    go.set()
    eventually(lambda: scene.awaiting("n1") == [], "its source forgets it", PATIENCE)
    assert handled.is_set()
    assert scene.nothing_is_dead("n1", "n2")


@pytest.mark.behaviour(104)
def test_a_transactional_message_that_is_rejected_dies_at_its_source_alone(scene: Scene) -> None:
    scene.endpoint("billing", "n2", {"Hello": reject})
    sales = scene.endpoint("sales", "n1", {})

    sent = sales.send("billing", "Hello", {"n": 1}, delivery=DeliveryOptions(transactional=True))

    [copy] = scene.until_dead("n1", NodeQueue.DEADXACT)
    assert copy.message.id == sent.message_id
    assert copy.message.body == b'{"n": 1}'
    assert copy.message_class == MessageClass.NACK_RECEIVE_REJECTED
    assert copy.reason == "not for me"
    assert scene.nothing_is_dead("n2")
    assert scene.awaiting("n1") == []
    assert scene.session.count("error") == 0


@pytest.mark.behaviour(104)
def test_an_unreceived_transactional_message_becomes_a_dead_letter_at_the_sweep_after_its_time(
    one_scene: Scene,
) -> None:
    sales = one_scene.endpoint("sales", "n1", {})
    one_scene.session.create_queues(["asleep"])

    sent = sales.send(
        "asleep",
        "Hello",
        1,
        time_to_be_received=timedelta(milliseconds=300),
        delivery=DeliveryOptions(transactional=True, journal=DEAD),
    )

    [copy] = one_scene.until_dead("n1", NodeQueue.DEADXACT)
    assert copy.message.id == sent.message_id
    assert copy.message_class == MessageClass.NACK_RECEIVE_TIMEOUT
    eventually(
        lambda: one_scene.session.count("asleep") == 0, "a sweep takes the message out of its queue"
    )


def test_a_transactional_message_from_a_handler_is_kept_with_its_sending(scene: Scene) -> None:
    def pass_on(_body: Any, context: HandlerContext) -> None:
        context.send("asleep", "Hello", 1, delivery=DeliveryOptions(transactional=True))

    sales = scene.endpoint("sales", "n1", {"Go": pass_on})
    scene.session.create_queues(["asleep"])

    sales.send_local("Go", 1)

    eventually(lambda: scene.session.count("asleep") == 1, "it is sent", PATIENCE)
    eventually(lambda: len(scene.awaiting("n1")) == 1, "it is kept", PATIENCE)


def test_a_delayed_transactional_message_without_a_destination_dies_at_its_source(
    scene: Scene,
) -> None:
    sales = scene.endpoint("sales", "n1", {})

    sent = sales.send("nowhere", "Hello", 1, delay=0, delivery=DeliveryOptions(transactional=True))

    [copy] = scene.until_dead("n1", NodeQueue.DEADXACT)
    assert copy.message.id == sent.message_id
    assert copy.message_class == MessageClass.NACK_BAD_DST_Q
    assert scene.awaiting("n1") == []


def test_an_application_has_a_dead_letter_queue_of_its_own(one_scene: Scene) -> None:
    one_scene.endpoint("billing", "n2", {"Hello": reject})
    sales = one_scene.endpoint("sales", "n1", {})
    own = DeliveryOptions(transactional=True, journal=DEAD, dead_letter_queue="sales.dead")

    sales.send("billing", "Hello", 1, delivery=own)

    queue = one_scene.box("n1", NodeQueue.DEADXACT, "sales.dead")
    eventually(lambda: queue.count() == 1, "it is in the application's queue", PATIENCE)
    assert one_scene.box("n1", NodeQueue.DEADXACT).count() == 0


def test_a_sender_that_asks_learns_how_each_message_ended(scene: Scene) -> None:
    received: list[tuple[str, int]] = []

    def note(_body: Any, context: HandlerContext) -> None:
        about = context.headers[headers.CORRELATION_ID]
        received.append((about, int(context.headers[marks.CLASS])))

    scene.endpoint("billing", "n2", {"Good": accept, "Bad": reject})
    scene.endpoint("admin", "n1", {"*": note})
    sales = scene.endpoint("sales", "n1", {})
    full = AcknowledgeLevel.FULL_RECEIVE | AcknowledgeLevel.POS_ARRIVAL
    asks = DeliveryOptions(acknowledge=full, admin_queue="admin")

    good = sales.send("billing", "Good", 1, delivery=asks).message_id
    bad = sales.send("billing", "Bad", 1, delivery=asks).message_id
    none = sales.send("nowhere", "Good", 1, delay=0, delivery=asks).message_id

    expected = {
        (good, MessageClass.ACK_REACH_QUEUE),
        (good, MessageClass.ACK_RECEIVE),
        (bad, MessageClass.ACK_REACH_QUEUE),
        (bad, MessageClass.NACK_RECEIVE_REJECTED),
        (none, MessageClass.NACK_BAD_DST_Q),
    }
    eventually(lambda: expected <= set(received), "each result is acknowledged", PATIENCE)
    assert set(received) == expected


def test_a_missing_admin_queue_stops_no_message(scene: Scene) -> None:
    handled = threading.Event()
    sales = scene.endpoint("sales", "n1", {"Hello": lambda _body, _: handled.set()})
    asks = DeliveryOptions(acknowledge=AcknowledgeLevel.FULL_RECEIVE, admin_queue="nobody")

    sales.send_local("Hello", 1, delivery=asks)

    assert handled.wait(PATIENCE)
    eventually(lambda: scene.session.count("sales") == 0, "it is acknowledged", PATIENCE)
    assert scene.session.count("error") == 0


def test_journals_keep_copies_of_sent_and_of_received_messages(scene: Scene) -> None:
    scene.endpoint("billing", "n2", {"Hello": accept}, journaled=("billing",))
    sales = scene.endpoint("sales", "n1", {}, journal=True)

    plain = sales.send("billing", "Hello", 1).message_id
    kept = sales.send(
        "billing", "Hello", 2, delivery=DeliveryOptions(transactional=True)
    ).message_id

    source, target = (
        scene.box("n1", NodeQueue.JOURNAL),
        scene.box("n2", NodeQueue.JOURNAL, "billing"),
    )
    eventually(lambda: source.count() == 2, "its source has copies", PATIENCE)
    eventually(lambda: target.count() == 2, "the target has copies", PATIENCE)
    assert sorted(ids(source)) == sorted(ids(target)) == sorted([plain, kept])
    classes = {one.message.id: one.message_class for one in source.peek()}
    assert classes == {plain: MessageClass.ACK_REACH_QUEUE, kept: MessageClass.ACK_RECEIVE}


@pytest.mark.behaviour(100)
def test_without_the_feature_nothing_changes(sqlite_url: str) -> None:
    from timeoutmgr import Endpoint, EndpointConfiguration
    from timeoutmgr.endpoint.configuration import transport_from_url

    config = EndpointConfiguration("sales")
    config.use_transport(transport_from_url(sqlite_url))
    endpoint = Endpoint(config)

    assert endpoint.install() == ["sales", "error"]
    with pytest.raises(InvalidMessage, match="enable DeadLetterQueues"):
        endpoint.send("sales", "Hello", 1, delivery=DeliveryOptions())

    endpoint.close()


def test_a_message_that_no_packet_carries_stops_no_endpoint(
    one_scene: Scene, mysql_url: str, unique: str
) -> None:
    """A dead letter becomes a copy in the error queue; a journal copy is left out."""
    database = Database(mysql_url)
    event.listen(
        database.engine, "connect", lambda _, record: record.info.update(timeoutmgr_packet=100_000)
    )
    handled: list[str] = []

    def handle(body: Any, _context: HandlerContext) -> None:
        if body == "bad" * 20_000:
            raise Rejected(MessageClass.NACK_BAD_ENCRYPTION, "cannot decrypt")
        handled.append(body[:5])

    store = DeadLetterStore(database, prefix=f"{unique}_")
    sales = one_scene.endpoint("sales", "n1", {"T": handle}, store=store, journaled=("sales",))

    for body in ("bad" * 20_000, "large" * 20_000, "small"):
        sales.send_local("T", body)

    eventually(lambda: handled == ["large", "small"], "the endpoint goes on", PATIENCE)
    one_scene.until_failed()
    node = QueueManager(store=store, node="n1")
    journal = StoredCopyQueue(node, NodeQueue.JOURNAL, "sales")
    eventually(lambda: journal.count() == 1, "the small message is journaled", PATIENCE)
    assert one_scene.session.count("error") == 1
    database.dispose()
