"""Messages in levels of Celery's names go into ours, or stay where they are; a real RabbitMQ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import amqp
import pytest
from kombu.transport.native_delayed_delivery import calculate_routing_key

from tests.migration.place import HOUR, Place
from tests.support.waiting import eventually
from timeoutmgr.message import headers
from timeoutmgr.message.instants import from_micros, to_wire
from timeoutmgr.message.validation import Limits
from timeoutmgr.migration import BatchState
from timeoutmgr.migration.levels.target import LevelsSink, StoreSink
from timeoutmgr.native.levels import routing_key


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
    place.wait_for_levels(place.celerys, 1)

    report = place.drain(place.out_of(place.celerys, LevelsSink(place.target())))

    assert (report.collected, report.new, report.returned) == (1, 1, 0)
    place.wait_for_levels(place.names, 1)
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


def test_a_message_that_cannot_be_moved_stays_and_is_counted(
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
    place.wait_for_levels(place.celerys, 3)
    parts = place.out_of(
        place.celerys, LevelsSink(place.target()), chunk=10, renames={"old": place.queue}
    )

    report = place.drain(parts)

    assert (report.collected, report.new, report.returned, report.verified) == (3, 1, 2, True)
    place.wait_for_levels(place.celerys, 2)
    place.wait_for_levels(place.names, 1)
    assert "message 'no time' stays in" in caplog.text
    assert f"there is no queue '{place.name}.gone'" in caplog.text


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
    place.wait_for_levels(place.celerys, 3)
    parts = place.out_of(place.celerys, LevelsSink(place.target()))
    run = place.begin(parts)
    batch = next(one for one in parts.ledger.batches(run.id) if one.range.first.id.endswith("_11"))
    for state in (BatchState.HIDDEN, BatchState.SENDING):
        parts.ledger.move_batch(run.id, replace(batch, state=state))

    report = parts.abort(run)

    parts.close()
    assert (report.state, report.collected, report.verified) == ("aborted", 0, True)
    place.wait_for_levels(place.celerys, 3)
    assert parts.ledger.open_run() is None


def test_a_message_to_a_refused_destination_stays_in_its_level(
    place: Place, raw_channel: amqp.Channel
) -> None:
    into = place.persistence.migration_target(place.name, place.clock)
    limits = Limits(refused_destinations=(place.queue,))
    raw_channel.basic_publish(
        amqp.Message(
            b"",
            application_headers={headers.DELIVER_AT: to_wire(place.clock.now() + HOUR)},
            message_id="m1",
        ),
        place.celerys.level_name(11),
        calculate_routing_key(3600, place.queue),
    )
    place.wait_for_levels(place.celerys, 1)

    report = place.drain(
        place.out_of(place.celerys, StoreSink(into, place.name, limits, place.clock))
    )

    assert (report.new, report.returned) == (0, 1)
    place.wait_for_levels(place.celerys, 1)
