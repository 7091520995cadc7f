"""A store goes into delay levels with the delay that is left to each timeout; a real RabbitMQ."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.migration.conftest import pending
from tests.migration.place import HOUR, Place
from tests.persistence.making import SECOND, timeout
from tests.support.waiting import eventually
from timeoutmgr.contracts import Key, TimeoutState
from timeoutmgr.errors import MigrationFailed, MigrationRefused
from timeoutmgr.message import headers
from timeoutmgr.message.foreign import AMQP, Foreign, Route
from timeoutmgr.message.instants import from_micros, to_wire
from timeoutmgr.message.message import with_headers
from timeoutmgr.message.validation import Limits
from timeoutmgr.migration import (
    Batch,
    BatchState,
    Item,
    KeyRange,
    Survey,
    Terms,
    Window,
    begin,
)
from timeoutmgr.migration.batch_step import hide
from timeoutmgr.migration.levels.target import LevelsTarget
from timeoutmgr.native.infrastructure import delay_topology
from timeoutmgr.native.levels import MAX_DELAY
from timeoutmgr.native.names import NSERVICEBUS_V1
from timeoutmgr.transport.amqp import dispatch
from timeoutmgr.transport.kombu_transport import KombuTransport


@pytest.mark.behaviour(136)
def test_a_store_goes_into_the_levels_with_the_delay_that_is_left(place: Place) -> None:
    given = place.some(5)
    place.store.store_many(given)

    report = place.migrate()

    assert (report.collected, report.new, report.repeated, report.verified) == (5, 5, 0, True)
    assert pending(place.store) == []
    assert place.store.find(given[0].id) == (TimeoutState.MIGRATED, None)
    place.wait_for_levels(place.names, 5)


def test_a_batch_is_written_whole_before_its_confirms_are_waited_for(
    place: Place, rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.store.store_many(place.some(4))
    reached: list[str] = []
    monkeypatch.setattr(dispatch, "reach", reached.append)

    with closing(KombuTransport(rabbitmq_url, confirm_window=1)) as transport:
        target = LevelsTarget(transport, place.names, Limits(), place.clock)
        parts = replace(place.into_levels(), target=target)
        report = parts.migrate(place.begin(parts))
        parts.close()

    assert (report.batches, report.new) == (2, 4)
    assert reached.count("window.written") == 2


@pytest.mark.behaviour(136)
def test_a_timeout_due_during_the_move_arrives_when_due_and_the_overdue_at_once(
    place: Place,
) -> None:
    soon, late = place.some(2, ahead=6 * SECOND)
    late = replace(late, due=soon.due - 5 * SECOND)
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
        [first] = receiver.receive(1, 20)
        [second] = receiver.receive(1, 20)
        at = place.clock.now()
    assert [first.message.id, second.message.id] == [late.message.id, soon.message.id]
    assert soon.due <= at
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

    warned = "\n".join(refused.value.reasons)
    assert f"due {from_micros(far).isoformat()}: " in warned
    assert f"'{place.name}.gone': there is no such queue for 1 timeouts" in warned
    assert "'a.*.b': " in warned
    assert "exchanges and queues of the levels are missing" in warned
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

    parts.migrate(begin(parts, terms, lambda: place.name))

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
        report = parts.abort(parts.ledger.acquire(run.id, parts.runner))
    else:
        report = parts.migrate(place.begin(parts))

    parts.close()
    left = [] if not aborts else [one.id for one in given[2:]]
    assert [one.id for one in pending(place.store)] == left
    assert report.repeated == 2
    assert (report.collected, report.new, report.returned) == ((4, 2, 2) if aborts else (6, 6, 0))
    assert report.verified
    place.wait_for_levels(place.names, report.new + 1)  # one id of the first batch is there twice


@pytest.mark.parametrize("exchange", ["", "tasks"])
def test_a_message_of_another_program_stays_in_the_store(place: Place, exchange: str) -> None:
    [ours, foreign] = place.some(2)
    carried = Foreign(Route(exchange, place.queue), AMQP, b"p").as_headers()
    quoting = {"note": 'it quotes "TimeoutManager.Route": as a value'}
    ours = replace(ours, message=with_headers(ours.message, quoting))
    foreign = replace(
        foreign,
        message=with_headers(foreign.message, carried),
        destination=Route(exchange, place.queue).destination,
    )
    place.store.store_many([ours, foreign])
    parts = place.into_levels()
    assert parts.source.survey(Window(safety=0)).left == 1
    parts.close()

    report = place.migrate()

    assert (report.new, report.verified) == (1, True)
    assert [one.id for one in pending(place.store)] == [foreign.id]
    place.wait_for_levels(place.names, 1)


def test_a_queue_is_not_asked_for_its_messages(place: Place) -> None:
    assert not place.target().knows_what_it_has
    with pytest.raises(TypeError):
        place.target().present(["a"])


def test_a_queue_that_went_away_stops_the_batch_before_anything_is_sent(place: Place) -> None:
    place.session.delete_queues([place.queue])
    batch = Batch(no=0, range=KeyRange(Key(0, ""), Key(0, ""), 1))

    with pytest.raises(MigrationFailed, match="are gone"):
        place.target().deliver("r", batch, [Item(timeout=place.some(1)[0])])

    assert place.counts(place.names) == 0


def test_a_timeout_for_an_unbindable_queue_that_came_after_the_plan_stops_the_batch(
    place: Place,
) -> None:
    batch = Batch(no=0, range=KeyRange(Key(0, ""), Key(0, ""), 1))
    item = Item(timeout=replace(place.some(1)[0], destination="to.*"))

    with pytest.raises(MigrationFailed, match=r"batch 0: .*; cancel its timeouts and run again"):
        place.target().deliver("r", batch, [item])


@pytest.mark.parametrize("accepts", [False, True])
def test_levels_of_classic_queues_are_a_problem_unless_loss_is_accepted(
    place: Place, accepts: bool
) -> None:
    target = LevelsTarget(
        place.transport, NSERVICEBUS_V1, Limits(), place.clock, accept_loss=accepts
    )

    found = [str(one) for one in target.problems(Survey(count=0, earliest=None, latest=None))]

    assert any("a broker that is killed loses messages" in one for one in found) is not accepts


def test_a_destination_that_is_not_allowed_is_a_problem(place: Place) -> None:
    place.store.store_many(place.some(2))
    limits = Limits(refused_destinations=(place.queue,))
    target = LevelsTarget(place.transport, place.names, limits, place.clock)
    parts = replace(place.into_levels(), target=target)

    with pytest.raises(MigrationRefused, match="in refused_destinations"):
        place.begin(parts)

    assert place.store.statistics().pending == 2
    parts.close()
