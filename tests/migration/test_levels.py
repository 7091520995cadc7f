"""Messages in delay levels go into the store unchanged, and once; on a real RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import amqp
import pytest

from tests.migration.conftest import pending
from tests.migration.place import HOUR, Place
from tests.support.waiting import eventually
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.validation import Limits
from timeoutmgr.migration import Batch, BatchState, Item, Window
from timeoutmgr.migration.levels.drain import LevelsOrigin
from timeoutmgr.migration.levels.target import StoreSink, part
from timeoutmgr.native.levels import routing_key
from timeoutmgr.transport.amqp.relay import Relay, Relayed


def test_levels_go_back_into_the_store_as_they_came_from_it(place: Place) -> None:
    given = place.some(5)
    place.store.store_many(given)
    place.migrate()
    place.wait_for_levels(place.names, 5)

    report = place.drain(place.out_of(place.names, sender=place.name))

    assert pending(place.store) == given
    assert (report.collected, report.new, report.known, report.verified) == (5, 5, 0, True)
    place.wait_for_levels(place.names, 0)


def test_the_poller_is_notified_of_messages_from_the_levels(place: Place) -> None:
    given = place.some(3)
    place.store.store_many(given)
    place.migrate()
    place.wait_for_levels(place.names, 3)
    woken: list[Micros] = []
    into = place.persistence.migration_target(place.name, place.clock)

    sink = StoreSink(into, place.name, Limits(), place.clock, woken.append)
    place.drain(place.out_of(place.names, sink))

    assert min(woken) == given[0].due


@pytest.mark.parametrize("aborts", [False, True])
def test_a_chunk_that_is_stored_and_not_acknowledged_is_in_one_place_in_the_end(
    place: Place, aborts: bool
) -> None:
    given = place.some(3)
    place.store.store_many(given)
    place.migrate()
    place.wait_for_levels(place.names, 3)
    parts = place.out_of(place.names)
    run = place.begin(parts)
    settled = place.names.level_name(11)
    eventually(lambda: place.session.count(settled) == 3, "all are in their level", 5)
    level = next(batch for batch in parts.ledger.batches(run.id) if batch.range.first.id == settled)
    for state in (BatchState.HIDDEN, BatchState.SENDING):
        parts.ledger.move_batch(run.id, replace(level, state=state))
    with parts.source.opened(level) as relay:
        received = list(relay.receive(2, 5))
        while len(received) < 2:  # they come singly if the broker has more to do
            received += relay.receive(2 - len(received), 5)
        messages, _unfit = part(received, {}, parts.sink, None)
        parts.sink.accept(run.id, level, relay, messages)
    parts.close()
    place.wait_for_levels(place.names, 3)
    parts = place.out_of(place.names)

    if aborts:
        report = parts.abort(parts.ledger.acquire(run.id, parts.runner))
    else:
        report = parts.migrate(place.begin(parts))

    parts.close()
    assert len(pending(place.store)) == (2 if aborts else 3)
    place.wait_for_levels(place.names, 1 if aborts else 0)
    assert report.verified
    assert (report.new, report.known) == ((0, 0) if aborts else (1, 2))


def test_a_message_that_no_store_accepts_stays_and_blocks_no_other(
    place: Place, raw_channel: amqp.Channel
) -> None:
    due = {headers.DELIVER_AT: to_wire(place.clock.now() + HOUR)}
    for name in ("a\0b", "x" * 256, "fine"):
        found = due | {headers.MESSAGE_ID: name}  # the property of that name has no room for more
        raw_channel.basic_publish(
            amqp.Message(b"", application_headers=found),
            place.names.level_name(11),
            routing_key(3600, place.queue),
        )
    place.wait_for_levels(place.names, 3)

    report = place.drain(place.out_of(place.names))

    assert (report.new, report.returned, report.verified) == (1, 2, True)
    place.wait_for_levels(place.names, 2)


def test_messages_of_other_senders_are_left_to_them(place: Place) -> None:
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
    place.wait_for_levels(place.names, 2)

    report = place.drain(place.out_of(place.names, sender=place.name))

    assert report.collected == 1
    assert pending(place.store) == [mine]
    place.wait_for_levels(place.names, 1)


def test_levels_are_read_whole(place: Place) -> None:
    parts = place.out_of(place.names)

    with pytest.raises(ConfigurationError, match="moved whole"):
        parts.source.survey(Window(until=1))
    parts.close()


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


def test_a_level_of_a_slow_broker_does_not_count_as_empty(place: Place) -> None:
    place.store.store_many(place.some(3))
    place.migrate()
    place.wait_for_levels(place.names, 3)
    parts = place.out_of(place.names)
    slow = replace(parts, source=Slow(place.transport, place.names, place.clock))

    report = place.drain(slow)

    assert report.new == 3
    place.wait_for_levels(place.names, 0)


def test_an_abort_reads_all_of_a_level_for_messages_that_are_in_both(place: Place) -> None:
    given = place.some(5)
    place.store.store_many(given)
    place.migrate()
    level = place.names.level_name(11)
    eventually(lambda: place.session.count(level) == 5, "all are in their level", 10)
    parts = place.out_of(place.names, chunk=1)
    run = place.begin(parts)
    batch = next(one for one in parts.ledger.batches(run.id) if one.range.first.id == level)
    back = [Item(timeout=given[-1])]  # the last message of the level
    parts.target.deliver(run.id, batch, back)

    replace(parts, source=Slow(place.transport, place.names, place.clock)).abort(run)

    parts.close()
    assert pending(place.store) == given[-1:]
    place.wait_for_levels(place.names, 4)


@pytest.mark.parametrize("chunk", [1, 9])
def test_a_message_of_an_id_that_another_message_has_stays_in_its_level(
    place: Place, raw_channel: amqp.Channel, chunk: int
) -> None:
    found = {headers.DELIVER_AT: to_wire(place.clock.now() + HOUR), headers.MESSAGE_ID: "used"}
    for body in (b"one", b"two", b"one"):
        raw_channel.basic_publish(
            amqp.Message(body, application_headers=found),
            place.names.level_name(11),
            routing_key(3600, place.queue),
        )
    place.wait_for_levels(place.names, 3)

    report = place.drain(place.out_of(place.names, chunk=chunk))

    assert [one.message.body for one in pending(place.store)] == [b"one"]
    assert (report.new, report.known, report.returned, report.verified) == (1, 1, 1, True)
    place.wait_for_levels(place.names, 1)
