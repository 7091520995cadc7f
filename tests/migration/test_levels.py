"""From a store into delay levels and back, and from levels of other names; a real RabbitMQ."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import Any, Final

import amqp
import pytest
from kombu.transport.native_delayed_delivery import calculate_routing_key

from tests.migration.conftest import pending
from tests.migration.levels import names_of, queues_of
from tests.persistence.making import SECOND, timeout
from timeoutmgr import headers
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Key, Timeout, TimeoutState, TopologySession
from timeoutmgr.errors import ConfigurationError, MigrationFailed, MigrationRefused
from timeoutmgr.instants import Micros, from_micros, to_wire
from timeoutmgr.migration import (
    Batch,
    BatchState,
    Item,
    Parts,
    Range,
    Report,
    Run,
    Terms,
    Window,
    abort,
    begin,
    migrate,
)
from timeoutmgr.migration.draining import DrainParts, abort_drain, drain
from timeoutmgr.migration.into_levels import LevelsTarget
from timeoutmgr.migration.levels import LevelsOrigin
from timeoutmgr.migration.moving import hide
from timeoutmgr.migration.sinks import LevelsSink, Sink, StoreSink, part
from timeoutmgr.native.levels import MAX_DELAY, routing_key
from timeoutmgr.native.names import CELERY, NameSet
from timeoutmgr.native.topology import delay_topology, unroutable_topology
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.routing import timeout_id
from timeoutmgr.testing.signals import eventually
from timeoutmgr.transport import dispatch
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.relay import Relay, Relayed

HOUR: Final = 3600 * SECOND


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker with levels of two names, in classic queues, which a broker makes quickly."""

    transport: KombuTransport
    session: TopologySession
    names: NameSet
    celerys: NameSet

    def declare(self) -> None:
        """Declare what is missing."""
        self.session.declare(unroutable_topology())
        for one in (self.names, self.celerys):
            if self.session.missing(delay_topology(one, "classic")):
                self.session.declare(delay_topology(one, "classic"))


class Place:
    """A store and a queue of one test's own, and a broker with levels of two names."""

    def __init__(self, broker: Broker, url: str, name: str) -> None:
        self.transport = broker.transport
        self.session = broker.session
        self.names = broker.names
        self.celerys = broker.celerys
        self.name = name
        self.clock = SystemClock()
        self.queue = f"{name}.billing"
        self.persistence = SqlPersistence(url)
        self.persistence.install()
        self.store = self.persistence.timeouts(name, self.clock)
        self.session.create_queues([self.queue])

    def target(self) -> LevelsTarget:
        """Our levels, as a target."""
        return LevelsTarget(self.transport, self.names, self.clock)

    def into_levels(self, names: str = "run") -> Parts:
        """From the store into our levels."""
        return Parts(
            source=self.persistence.migration_source(self.name, self.clock),
            target=self.target(),
            ledger=self.persistence.migration_ledger(self.name, self.clock),
            runner=names,
        )

    def out_of(
        self, names: NameSet, sink: Sink | None = None, *, chunk: int = 2, **more: Any
    ) -> DrainParts:
        """From levels into the store, or into *sink*, two at a time."""
        into = self.persistence.migration_target(self.name, self.clock)
        return DrainParts(
            source=LevelsOrigin(self.transport, names, self.clock, **more),
            sink=sink or StoreSink(into, self.name, self.clock),
            ledger=self.persistence.migration_ledger(self.name, self.clock),
            runner="drain",
            chunk=chunk,
        )

    def begin(self, parts: Parts | DrainParts, safety: int = 0) -> Run:
        """Begin a run, or go on with the open one."""
        terms = Terms(
            endpoint=self.name,
            source=parts.source.describe(),
            target=parts.target.describe(),
            window=Window(safety=safety),
            batch=2,
        )
        numbers = iter(range(100))
        runs = len(parts.ledger.runs())
        return begin(parts, terms, lambda: f"{self.name}r{runs}{next(numbers)}")

    def migrate(self) -> Report:
        """All of the store into our levels."""
        parts = self.into_levels()
        made = migrate(parts, self.begin(parts))
        parts.close()
        return made

    def drain(self, parts: DrainParts) -> Report:
        """All of the levels into the sink."""
        made = drain(parts, self.begin(parts))
        parts.close()
        return made

    def some(self, amount: int, ahead: Micros = HOUR) -> list[Timeout]:
        """Timeouts due from *ahead* on, under the ids that a store gives them."""
        now = self.clock.now()
        made = [
            timeout(f"t{number}", now + ahead + number, destination=self.queue, saga=f"s{number}")
            for number in range(amount)
        ]
        return [
            replace(
                one,
                id=timeout_id(self.name, one.message.id),
                message=replace(
                    one.message,
                    headers={
                        **one.message.headers,
                        headers.DELIVER_AT: to_wire(one.due),
                        headers.SAGA_ID: one.saga_id or "",
                        headers.TIME_SENT: to_wire(one.created),
                        headers.ORIGINATING_ENDPOINT: self.name,
                    },
                ),
            )
            for one in made
        ]

    def counts(self, names: NameSet) -> int:
        """How many messages are in the levels of these names."""
        return sum(self.session.count(name) for name in queues_of(names))

    def hold(self, names: NameSet, amount: int) -> None:
        """Wait until the levels hold so many: a queue counts a moment late."""
        eventually(lambda: self.counts(names) == amount, f"{amount} in the levels", 10)

    def close(self) -> None:
        """Delete the queue."""
        self.session.delete_queues([self.queue])
        self.persistence.close()


@pytest.fixture(scope="module")
def broker(rabbitmq_url: str) -> Iterator[Broker]:
    """A broker with levels that nobody else knows of."""
    name = f"t{secrets.token_hex(4)}"
    names = names_of(name)
    celerys = CELERY.prefixed(name)
    with closing(KombuTransport(rabbitmq_url)) as transport, closing(transport.session()) as opened:
        session: Any = opened
        made = Broker(transport, session, names, celerys)
        made.declare()
        yield made
        for one in (names, celerys):
            session.remove(delay_topology(one, "classic"))


@pytest.fixture
def place(
    broker: Broker, sqlite_url: str, unique: str, raw_channel: amqp.Channel
) -> Iterator[Place]:
    """A store, and empty levels."""
    broker.declare()  # one test removes them
    for name in (*queues_of(broker.names), *queues_of(broker.celerys)):
        raw_channel.queue_purge(name)
    with closing(Place(broker, sqlite_url, unique)) as made:
        yield made


@pytest.mark.behaviour(136)
def test_a_store_goes_into_the_levels_with_the_delay_that_is_left(place: Place) -> None:
    given = place.some(5)
    place.store.store_many(given)

    report = place.migrate()

    assert (report.taken, report.new, report.repeated, report.verified) == (5, 5, 0, True)
    assert pending(place.store) == []
    assert place.store.find(given[0].id) == (TimeoutState.MIGRATED, None)
    place.hold(place.names, 5)


def test_a_batch_is_written_whole_before_its_confirms_are_waited_for(
    place: Place, rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.store.store_many(place.some(4))
    reached: list[str] = []
    monkeypatch.setattr(dispatch, "reach", reached.append)

    with closing(KombuTransport(rabbitmq_url, confirm_window=1)) as transport:
        target = LevelsTarget(transport, place.names, place.clock)
        parts = replace(place.into_levels(), target=target)
        report = migrate(parts, place.begin(parts))
        parts.close()

    assert (report.batches, report.new) == (2, 4)
    assert reached.count("window.written") == 2


@pytest.mark.behaviour(136)
def test_what_is_due_during_the_move_arrives_when_it_is_due_and_the_overdue_at_once(
    place: Place,
) -> None:
    soon, late = place.some(2, ahead=2 * SECOND)
    late = replace(late, due=soon.due - SECOND)
    place.store.store_many([soon, late])
    parts = place.into_levels()
    run = place.begin(parts)
    [batch] = parts.ledger.batches(run.id)
    hide(parts, run, batch)
    parts.close()
    eventually(lambda: place.clock.now() > late.due, "one of them is overdue", 5)

    place.migrate()  # goes on with the run

    receiver = place.session.receiver(place.queue, prefetch=10)
    with closing(receiver):
        [first] = receiver.receive(1, 5)
        [second] = receiver.receive(1, 5)
        at = place.clock.now()
    assert [first.message.id, second.message.id] == [late.message.id, soon.message.id]
    assert soon.due <= at < soon.due + 3 * SECOND
    assert second.message.headers[headers.DELIVER_AT] == to_wire(soon.due)


@pytest.mark.behaviour(131)
@pytest.mark.behaviour(137)
def test_every_problem_is_named_and_nothing_moves(place: Place) -> None:
    far = place.clock.now() + MAX_DELAY // timedelta(microseconds=1) + HOUR
    place.store.store_many(
        [
            timeout("good", place.clock.now() + HOUR, destination=place.queue),
            timeout("far", far, destination=place.queue),
            timeout("gone", place.clock.now() + HOUR, destination=f"{place.name}.gone"),
            timeout("star", place.clock.now() + HOUR, destination="a.*.b"),
        ]
    )
    place.session.remove(delay_topology(place.names, "classic"))
    parts = place.into_levels()

    with pytest.raises(MigrationRefused) as refused:
        place.begin(parts)

    told = "\n".join(refused.value.reasons)
    assert f"due {from_micros(far).isoformat()}: " in told
    assert f"'{place.name}.gone': there is no such queue for 1 timeouts" in told
    assert "'a.*.b': " in told
    assert "exchanges and queues of the levels are missing" in told
    assert place.store.statistics().pending == 4
    assert parts.ledger.runs() == []
    parts.close()


def test_beyond_the_levels_stays_in_the_store_when_it_is_left_out(place: Place) -> None:
    now = place.clock.now()
    far = now + 2 * (MAX_DELAY // timedelta(microseconds=1))
    place.store.store_many([*place.some(1), timeout("far", far, destination=place.queue)])
    parts = place.into_levels()
    terms = Terms(
        endpoint=place.name,
        source=parts.source.describe(),
        target=parts.target.describe(),
        window=Window(until=now + 2 * HOUR),
    )

    migrate(parts, begin(parts, terms, lambda: place.name))

    parts.close()
    assert [one.id for one in pending(place.store)] == ["far"]


@pytest.mark.behaviour(134)
@pytest.mark.parametrize("aborts", [False, True])
def test_a_batch_that_may_have_been_sent_is_sent_to_its_end(place: Place, aborts: bool) -> None:
    given = place.some(6)
    place.store.store_many(given)
    parts = place.into_levels()
    run = place.begin(parts)
    first, second, _third = parts.ledger.batches(run.id)
    for batch in (first, second):
        hidden = hide(parts, run, batch)
        if batch is first:
            parts.ledger.move_batch(run.id, replace(hidden, state=BatchState.SENDING))
            parts.target.deliver(run.id, hidden, parts.source.read(run.id, hidden)[:1])
    parts.close()
    parts = place.into_levels("another")

    if aborts:
        report = abort(parts, parts.ledger.take(run.id, parts.runner))
    else:
        report = migrate(parts, place.begin(parts))

    parts.close()
    left = [] if not aborts else [one.id for one in given[2:]]
    assert [one.id for one in pending(place.store)] == left
    assert report.repeated == 2
    assert (report.taken, report.new, report.returned) == ((4, 2, 2) if aborts else (6, 6, 0))
    assert report.verified
    place.hold(place.names, report.new + 1)  # one of the first batch twice, under one id


def test_levels_go_back_into_the_store_as_they_came_from_it(place: Place) -> None:
    given = place.some(5)
    place.store.store_many(given)
    place.migrate()
    place.hold(place.names, 5)

    report = place.drain(place.out_of(place.names, sender=place.name))

    assert pending(place.store) == given
    assert (report.taken, report.new, report.known, report.verified) == (5, 5, 0, True)
    place.hold(place.names, 0)


def test_the_poller_is_told_of_what_comes_out_of_the_levels(place: Place) -> None:
    given = place.some(3)
    place.store.store_many(given)
    place.migrate()
    place.hold(place.names, 3)
    woken: list[Micros] = []
    into = place.persistence.migration_target(place.name, place.clock)

    place.drain(place.out_of(place.names, StoreSink(into, place.name, place.clock, woken.append)))

    assert min(woken) == given[0].due


@pytest.mark.parametrize("aborts", [False, True])
def test_a_chunk_that_is_stored_and_not_acknowledged_is_in_one_place_in_the_end(
    place: Place, aborts: bool
) -> None:
    given = place.some(3)
    place.store.store_many(given)
    place.migrate()
    place.hold(place.names, 3)
    parts = place.out_of(place.names)
    run = place.begin(parts)
    settled = place.names.level_name(11)
    eventually(lambda: place.session.count(settled) == 3, "all are in their level", 5)
    level = next(batch for batch in parts.ledger.batches(run.id) if batch.range.first.id == settled)
    for state in (BatchState.HIDDEN, BatchState.SENDING):
        parts.ledger.move_batch(run.id, replace(level, state=state))
    with parts.source.opened(level) as relay:
        received = list(relay.receive(2, 5))
        while len(received) < 2:  # they come one by one where the broker has more to do
            received += relay.receive(2 - len(received), 5)
        hands, _unfit = part(received, {}, parts.sink, None)
        parts.sink.take(run.id, level, relay, hands)
    parts.close()
    place.hold(place.names, 3)
    parts = place.out_of(place.names)

    if aborts:
        report = abort_drain(parts, parts.ledger.take(run.id, parts.runner))
    else:
        report = drain(parts, place.begin(parts))

    parts.close()
    assert len(pending(place.store)) == (2 if aborts else 3)
    place.hold(place.names, 1 if aborts else 0)
    assert report.verified
    assert (report.new, report.known) == ((0, 0) if aborts else (1, 2))


@pytest.mark.behaviour(117)
def test_celerys_levels_go_into_ours_whole_and_keep_their_due_time(
    place: Place, raw_channel: amqp.Channel
) -> None:
    due = place.clock.now() + HOUR
    raw: dict[str, Any] = {
        "task": "shop.remind",
        "eta": from_micros(due).isoformat(),
        "expires": None,
        "retries": 0,
        "timelimit": [None, 30],
        "x-death": [{"queue": "q", "reason": "expired", "count": 1}],
    }
    message = amqp.Message(
        b"[[], {}, {}]",
        application_headers=raw,
        content_type="application/json",
        content_encoding="utf-8",
        correlation_id="c-1",
        reply_to="answers",
        message_id="",
        priority=3,
    )
    raw_channel.basic_publish(
        message,
        place.celerys.level_name(11),
        calculate_routing_key(3600, place.queue),
    )
    place.hold(place.celerys, 1)

    report = place.drain(place.out_of(place.celerys, LevelsSink(place.target())))

    assert (report.taken, report.new, report.returned) == (1, 1, 0)
    place.hold(place.names, 1)
    levels = place.names.level_names
    eventually(lambda: any(map(place.session.count, levels)), "it is in its level", 5)
    queue = next(name for name in levels if place.session.count(name))
    moved = raw_channel.basic_get(queue)
    arrived = moved.properties
    found = arrived.pop("application_headers")
    assert {name: found[name] for name in found if "death" not in name} == {
        **{name: value for name, value in raw.items() if name != "x-death"},
        headers.DELIVER_AT: to_wire(due),
    }
    assert not any(one["queue"] == "q" for one in found.get("x-death", []))
    assert (moved.body, arrived["correlation_id"], arrived["reply_to"]) == (
        "[[], {}, {}]",
        "c-1",
        "answers",
    )
    assert arrived["priority"] == 3
    bits, destination = moved.delivery_info["routing_key"][:55], place.queue
    assert 3590 <= int(bits.replace(".", ""), 2) <= 3600
    assert moved.delivery_info["routing_key"] == routing_key(
        int(bits.replace(".", ""), 2), destination
    )


def test_what_cannot_be_moved_stays_where_it_is_and_is_counted(
    place: Place, raw_channel: amqp.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    at = to_wire(place.clock.now() + HOUR)
    for name, found, destination in (
        ("no time", {}, place.queue),
        ("no queue", {headers.DELIVER_AT: at}, f"{place.name}.gone"),
        ("renamed", {headers.DELIVER_AT: at}, "old"),
    ):
        raw_channel.basic_publish(
            amqp.Message(b"", application_headers=found, message_id=name),
            place.celerys.level_name(11),
            calculate_routing_key(3600, destination),
        )
    place.hold(place.celerys, 3)
    parts = place.out_of(
        place.celerys, LevelsSink(place.target()), chunk=10, renames={"old": place.queue}
    )

    report = place.drain(parts)

    assert (report.taken, report.new, report.returned, report.verified) == (3, 1, 2, True)
    place.hold(place.celerys, 2)
    place.hold(place.names, 1)
    assert "message no time stays in" in caplog.text
    assert f"there is no queue '{place.name}.gone'" in caplog.text


def test_what_no_store_can_hold_stays_and_holds_nobody_up(
    place: Place, raw_channel: amqp.Channel
) -> None:
    found = {headers.DELIVER_AT: to_wire(place.clock.now() + HOUR)}
    for name in ("a\0b", "fine"):
        raw_channel.basic_publish(
            amqp.Message(b"", application_headers=found, message_id=name),
            place.names.level_name(11),
            routing_key(3600, place.queue),
        )
    place.hold(place.names, 2)

    report = place.drain(place.out_of(place.names))

    assert (report.new, report.returned, report.verified) == (1, 1, True)
    place.hold(place.names, 1)


def test_what_others_have_sent_is_left_to_them(place: Place) -> None:
    mine, theirs = place.some(2)
    theirs = replace(
        theirs,
        message=replace(
            theirs.message,
            headers={**theirs.message.headers, headers.ORIGINATING_ENDPOINT: "others"},
        ),
    )
    place.store.store_many([mine, theirs])
    place.migrate()
    place.hold(place.names, 2)

    report = place.drain(place.out_of(place.names, sender=place.name))

    assert report.taken == 1
    assert pending(place.store) == [mine]
    place.hold(place.names, 1)


def test_levels_are_taken_whole(place: Place) -> None:
    parts = place.out_of(place.names)

    with pytest.raises(ConfigurationError, match="taken whole"):
        parts.source.survey(Window(until=1))


class Slow(LevelsOrigin):
    """Levels on a broker that takes its time, and then hands out one message at a time."""

    @contextmanager
    def opened(self, batch: Batch) -> Iterator[Relay]:
        with super().opened(batch) as relay:
            receive, looks = relay.receive, count()

            def slowly(limit: int, wait: float) -> list[Relayed]:
                return receive(min(limit, 1), wait) if next(looks) % 2 else []

            relay.receive = slowly  # type: ignore[method-assign]  # a slow broker
            yield relay


def test_a_level_of_a_slow_broker_is_not_taken_for_an_empty_one(place: Place) -> None:
    place.store.store_many(place.some(3))
    place.migrate()
    place.hold(place.names, 3)
    parts = place.out_of(place.names)
    slow = replace(parts, source=Slow(place.transport, place.names, place.clock))

    report = place.drain(slow)

    assert report.new == 3
    place.hold(place.names, 0)


def test_an_abort_looks_at_all_of_a_level_for_what_is_in_both(place: Place) -> None:
    given = place.some(5)
    place.store.store_many(given)
    place.migrate()
    level = place.names.level_name(11)
    eventually(lambda: place.session.count(level) == 5, "all are in their level", 10)
    parts = place.out_of(place.names, chunk=1)
    run = place.begin(parts)
    batch = next(one for one in parts.ledger.batches(run.id) if one.range.first.id == level)
    back = [Item(timeout=given[-1])]  # the last one of the level
    parts.target.deliver(run.id, batch, back)

    abort_drain(replace(parts, source=Slow(place.transport, place.names, place.clock)), run)

    parts.close()
    assert pending(place.store) == given[-1:]
    place.hold(place.names, 4)


def test_a_queue_is_not_asked_what_it_has(place: Place) -> None:
    assert not place.target().knows_what_it_has
    with pytest.raises(NotImplementedError):
        place.target().present(["a"])


def test_a_queue_that_went_away_stops_the_batch_before_anything_is_sent(place: Place) -> None:
    place.session.delete_queues([place.queue])
    batch = Batch(no=0, range=Range(Key(0, ""), Key(0, ""), 1))

    with pytest.raises(MigrationFailed, match="are gone"):
        place.target().deliver("r", batch, [Item(timeout=place.some(1)[0])])

    assert place.counts(place.names) == 0


def test_a_drain_into_levels_that_is_given_up_leaves_the_rest_where_it_is(
    place: Place, raw_channel: amqp.Channel
) -> None:
    at = to_wire(place.clock.now() + HOUR)
    for name in "abc":
        raw_channel.basic_publish(
            amqp.Message(b"", application_headers={headers.DELIVER_AT: at}, message_id=name),
            place.celerys.level_name(11),
            calculate_routing_key(3600, place.queue),
        )
    place.hold(place.celerys, 3)
    parts = place.out_of(place.celerys, LevelsSink(place.target()))
    run = place.begin(parts)
    batch = next(one for one in parts.ledger.batches(run.id) if one.range.first.id.endswith("_11"))
    for state in (BatchState.HIDDEN, BatchState.SENDING):
        parts.ledger.move_batch(run.id, replace(batch, state=state))

    report = abort_drain(parts, run)

    parts.close()
    assert (report.state, report.taken, report.verified) == ("aborted", 0, True)
    place.hold(place.celerys, 3)
    assert parts.ledger.open_run() is None
