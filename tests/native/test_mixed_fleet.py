"""One fleet of many programs: each sends to each, at once and delayed, and each message is once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import amqp
import kombu as kombu_package
import pytest
from kombu.transport import native_delayed_delivery as kombus_helper

from tests.native.fleet import Fleet
from tests.support.waiting import eventually
from timeoutmgr import Endpoint, SendOptions, ToSend
from timeoutmgr.clock import SystemClock
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, from_micros, to_wire
from timeoutmgr.native.infrastructure import delay_topology
from timeoutmgr.native.levels import routing_key, start_level
from timeoutmgr.native.names import CELERY, NSERVICEBUS_V2
from timeoutmgr.testing import Inbox

pytestmark = pytest.mark.usefixtures("levels_of_others_go")

kombu: Any = kombu_package  # its annotations are too few to check against
helper: Any = kombus_helper

COUNT: Final = 1000
SECOND: Final = 1_000_000
CUT_OFF: Final = 1_000
"""Microseconds: RabbitMQ cuts the instant of arrival in a level off to milliseconds, and levels of
other programs' names have no margin for it."""


@dataclass(frozen=True)
class Note:
    """A message of the test: what it says of its own way."""

    id: str
    to: str
    due: Micros

    @property
    def body(self) -> dict[str, Any]:
        return {"to": self.to, "due": self.due}


@dataclass
class Received:
    """What arrived anywhere: id, where, and whether it was early or in the wrong place."""

    ids: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    delays: list[object] = field(default_factory=list)

    def note(self, queue: str, message_id: str, body: dict[str, Any], at: Micros) -> None:
        self.ids[message_id] += 1
        if body["to"] != queue or at < body["due"] - CUT_OFF:
            self.wrong.append(f"{message_id} in {queue} at {at}: {body}")


Program = Callable[[Sequence[Note], int], None]
"""Sends notes, all with one delay in seconds; 0 is at once."""


def conventional(channel: amqp.Channel) -> Program:
    """Send as NServiceBus.RabbitMQ does in its conventional topology."""

    def send(notes: Sequence[Note], delay: int) -> None:
        for note in notes:
            if delay:
                channel.exchange_bind(note.to, NSERVICEBUS_V2.delivery, f"#.{note.to}")
                delayed(channel, note, delay)
            else:
                channel.basic_publish(as_dotnet(note, 0), note.to, "", mandatory=True)

    return send


def direct(channel: amqp.Channel) -> Program:
    """Send as NServiceBus.RabbitMQ does in its direct topology."""

    def send(notes: Sequence[Note], delay: int) -> None:
        for note in notes:
            if delay:
                channel.queue_bind(note.to, NSERVICEBUS_V2.delivery, f"#.{note.to}")
                delayed(channel, note, delay)
            else:
                channel.basic_publish(as_dotnet(note, 0), "", note.to, mandatory=True)

    return send


def delayed(channel: amqp.Channel, note: Note, delay: int) -> None:
    exchange = NSERVICEBUS_V2.level_name(start_level(delay))
    channel.basic_publish(
        as_dotnet(note, delay), exchange, routing_key(delay, note.to), mandatory=True
    )


def as_dotnet(note: Note, delay: int) -> amqp.Message:
    """Return *note* with the properties and headers that NServiceBus writes."""
    table: dict[str, Any] = {
        headers.MESSAGE_ID: note.id,
        headers.TIME_SENT: to_wire(SystemClock().now()),
        headers.ENCLOSED_MESSAGE_TYPES: "Shop.Note, Shop, Version=1.0.0.0, Culture=neutral",
        headers.CONFIRMATION_ID: "1",
    }
    if delay:
        table[headers.DELAY_IN_SECONDS] = delay
    return amqp.Message(
        json.dumps(note.body),
        message_id=note.id,
        type="Shop.Note",
        content_type="application/json",
        delivery_mode=2,
        application_headers=table,
    )


def celery(channel: amqp.Channel, prefix: str) -> Program:
    """Send as Celery's native delayed delivery does, with kombu's own routing keys."""

    def send(notes: Sequence[Note], delay: int) -> None:
        for note in notes:
            message = amqp.Message(
                json.dumps(note.body),
                message_id=note.id,
                type="Note",
                content_type="application/json",
            )
            if delay:
                exchange = helper.level_name(start_level(delay), prefix)
                key = helper.calculate_routing_key(delay, note.to)
                channel.basic_publish(message, exchange, key, mandatory=True)
            else:
                channel.basic_publish(message, "", note.to, mandatory=True)

    return send


def ours(endpoint: Endpoint) -> Program:
    def send(notes: Sequence[Note], delay: int) -> None:
        endpoint.send_many(
            ToSend(
                note.to,
                "Note",
                note.body,
                SendOptions(
                    message_id=note.id, deliver_at=from_micros(note.due) if delay else None
                ),
            )
            for note in notes
        )

    return send


@contextmanager
def consumed(url: str, queues: Sequence[str], received: Received) -> Iterator[None]:
    """Receive in another thread, so that an early message is seen to be early."""
    stopped = threading.Event()
    clock = SystemClock()

    def run() -> None:
        with kombu.Connection(url) as connection, connection.channel() as channel:
            channel.auto_decode = False

            def on_message(queue: str, message: Any) -> None:
                given = message.headers or {}
                received.delays.append(given.get(headers.DELAY_IN_SECONDS))
                found = json.loads(bytes(message.body))
                received.note(queue, message.properties["message_id"], found, clock.now())

            for queue in queues:
                channel.basic_consume(
                    queue,
                    no_ack=True,
                    callback=lambda message, queue=queue: on_message(queue, message),
                )
            while not stopped.is_set():
                try:
                    connection.drain_events(timeout=0.2)
                except TimeoutError:
                    continue

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    stopped.set()
    thread.join()


@pytest.fixture
def prefix(unique: str, fleet: Fleet) -> Iterator[str]:
    """A prefix of Celery's levels for this test alone."""
    yield unique
    fleet.session.remove(delay_topology(CELERY.prefixed(unique), "classic"))


@dataclass(frozen=True)
class Programs:
    """All programs of the fleet by the names of their queues, and what reached any of them."""

    senders: dict[str, Program]
    inboxes: dict[str, Inbox]
    raw: Received

    def everything(self) -> Received:
        found = Received(Counter(self.raw.ids), list(self.raw.wrong))
        for queue, inbox in self.inboxes.items():
            for one in inbox.arrived:
                found.note(queue, one.id, one.body, one.at)
        return found


@pytest.fixture
def programs(fleet: Fleet, prefix: str, raw_channel: amqp.Channel) -> Iterator[Programs]:
    stem = fleet.stem
    peers = {kind: fleet.queue(f"{stem}.{kind}") for kind in ("conventional", "direct", "celery")}
    raw_channel.exchange_declare(peers["conventional"], "fanout", durable=True, auto_delete=False)
    raw_channel.queue_bind(peers["conventional"], peers["conventional"], "")
    dotnet, inbox_of_dotnet = fleet.with_inbox(fleet.native(f"{stem}.ours", names="nservicebus-v2"))
    config = fleet.native(f"{stem}.other", names="celery", prefix=prefix)
    config.use_transport(fleet.url, routing_topology="conventional")
    other, inbox_of_other = fleet.with_inbox(config)
    as_celery_declares(fleet.url, peers["celery"], prefix)
    returned: list[object] = []
    raw_channel.events["basic_return"].add(lambda *found: returned.append(found))
    received = Received()
    with ExitStack() as stack:
        stack.enter_context(consumed(fleet.url, list(peers.values()), received))
        yield Programs(
            senders={
                peers["conventional"]: conventional(raw_channel),
                peers["direct"]: direct(raw_channel),
                peers["celery"]: celery(raw_channel, prefix),
                f"{stem}.ours": ours(dotnet),
                f"{stem}.other": ours(other),
            },
            inboxes={f"{stem}.ours": inbox_of_dotnet, f"{stem}.other": inbox_of_other},
            raw=received,
        )
    for name in (peers["conventional"], peers["celery"], f"{stem}.ours", f"{stem}.other"):
        raw_channel.exchange_delete(name)
    assert returned == []


def as_celery_declares(url: str, queue: str, prefix: str) -> None:
    """Declare and bind *queue* as a Celery worker with native delays does."""
    with kombu.Connection(url) as connection:
        exchange = kombu.Exchange(queue, "topic")
        exchange(connection.channel()).declare()
        helper.bind_queue_to_native_delayed_delivery_exchange(
            connection, kombu.Queue(queue, exchange, routing_key=queue), prefix
        )


def ways(programs: Programs) -> list[tuple[str, str, int]]:
    """Return sender, receiver and delay of each way that the programs themselves support.

    A conventional peer reaches queues with an exchange alone, and Celery delays for queues that
    a program with its levels has bound.
    """
    conventional, direct, celery, our_own, other = programs.senders
    reached = {
        conventional: ([conventional, our_own, other], [conventional, our_own, other]),
        celery: (list(programs.senders), [celery, our_own, other]),
        **dict.fromkeys((direct, our_own, other), (list(programs.senders),) * 2),
    }
    # Ours that has Celery's levels is the first: its sends bind the queues of the others there.
    order = [other, our_own, direct, conventional, celery]
    return [
        (sender, receiver, delay)
        for delay in (1, 0, 2)
        for sender in order
        for receiver in reached[sender][1 if delay else 0]
    ]


def send_by_all(programs: Programs, count: int, stem: str) -> set[str]:
    """Send *count* notes, spread over all ways; return their ids."""
    sent = set()
    all_ways = ways(programs)
    for place, (sender, receiver, delay) in enumerate(all_ways):
        numbers = range(place, count, len(all_ways))
        due = SystemClock().now() + delay * SECOND
        notes = [Note(f"{stem}-{number}", receiver, due) for number in numbers]
        programs.senders[sender](notes, delay)
        sent |= {note.id for note in notes}
    return sent


@pytest.mark.behaviour(109, 111, 114, 119)
def test_a_thousand_messages_in_all_directions_arrive_once_in_time_in_their_queue(
    fleet: Fleet, programs: Programs
) -> None:
    sent = send_by_all(programs, COUNT, "note")
    eventually(lambda: len(programs.everything().ids) == COUNT, "all have arrived")

    # A second copy would have come before what took its way afterwards.
    last = send_by_all(programs, len(ways(programs)), "last")
    eventually(lambda: last <= set(programs.everything().ids), "all of the last have arrived")

    found = programs.everything()
    assert len(sent) == COUNT
    assert found.ids == Counter(sent | last)
    assert found.wrong == []
    assert fleet.errors() == []
    assert {type(one) for one in programs.raw.delays} == {int, type(None)}
    assert not [
        key
        for inbox in programs.inboxes.values()
        for one in inbox.arrived
        for key in one.headers
        if key.startswith(("NServiceBus.Transport.", "x-"))
    ]
