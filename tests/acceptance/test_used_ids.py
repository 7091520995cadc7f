"""A second message under a used id goes to the error queue, replaces the first, or is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.acceptance.matrix import EACH_ONCE, REFERENCE, Pair, matrix
from tests.acceptance.place import LATER, SOON, Party, Place
from tests.acceptance.test_inside_a_transaction import ONE_DATABASE, WITH_A_DATABASE, caller
from timeoutmgr import CancelResult, SendOptions, TimeoutState, ToSend
from timeoutmgr.contracts import RepeatKind
from timeoutmgr.errors import IdInUse
from timeoutmgr.message import headers
from timeoutmgr.message.routes import TIMEOUTS, timeout_id


@matrix(pairs=EACH_ONCE)
def test_other_content_goes_whole_to_the_error_queue(place: Place) -> None:
    party = Party(place).start()
    first = party.endpoint.send_local("Ping", "first", delay=LATER, message_id="used")
    party.wait_until_stored(first.id)

    with party.telemetry.expect("duplicates", 1):
        party.endpoint.send_local("Ping", "first", delay=SOON, message_id="used")
        party.endpoint.send_local(
            "Ping", "second", delay=SOON, message_id="used", headers={"tenant": "7"}
        )

    [copy] = party.errors.wait_for(1)
    assert (copy.id, copy.body) == ("used", b'"second"')
    assert copy.headers["tenant"] == "7"
    assert copy.headers[headers.DESTINATION] == party.name
    assert copy.headers[headers.FAILED_QUEUE] == party.name + TIMEOUTS
    assert "used before with other content" in copy.headers[headers.EXCEPTION_MESSAGE]
    [left] = party.endpoint.timeouts.list()
    assert (left.id, left.due) == (first.id, first.due)


@matrix(pairs=EACH_ONCE)
def test_a_replacement_moves_and_overwrites_a_pending_timeout(place: Place) -> None:
    party = Party(place).start()
    first = party.endpoint.send_local("Ping", "first", delay=LATER, message_id="debounced")
    party.wait_until_stored(first.id)

    second = party.endpoint.send_local(
        "Ping", "second", delay=SOON, message_id="debounced", on_conflict="replace"
    )
    arrived = party.inbox.wait_for_id("debounced")

    assert second.id == first.id
    assert arrived.body == "second"
    party.wait_until_dispatched(second.id)
    party.endpoint.send_local(
        "Ping", "too late", delay=SOON, message_id="debounced", on_conflict="replace"
    )
    [copy] = party.errors.wait_for(1)
    assert copy.body == b'"too late"'
    assert len(party.inbox.of("debounced")) == 1


@matrix(pairs=[REFERENCE, Pair("sqlite", "sqlite"), Pair("mysql", "mysql")])
def test_two_given_due_times_are_other_content(place: Place) -> None:
    party = Party(place).start()
    at = datetime.now(UTC) + LATER
    first = party.endpoint.send_local("Ping", 1, deliver_at=at, message_id="used")
    party.wait_until_stored(first.id)

    with party.telemetry.expect("duplicates", 2):
        party.endpoint.send_local("Ping", 1, deliver_at=at, message_id="used")
        party.endpoint.send_local("Ping", 1, delay=LATER, message_id="used")
        party.endpoint.send_local("Ping", 1, deliver_at=at + LATER, message_id="used")

    assert [copy.id for copy in party.errors.wait_for(1)] == ["used"]


@matrix(pairs=EACH_ONCE)
def test_the_message_of_an_early_cancel_leaves_a_history_row(place: Place) -> None:
    party = Party(place).start()
    doomed = timeout_id(party.name, "doomed")
    answer = party.endpoint.timeouts.cancel(doomed)

    with party.telemetry.expect("cancelled_on_arrival", 1):
        party.endpoint.send_local("Ping", 1, delay=SOON, message_id="doomed")

    assert answer is CancelResult.WILL_BE_CANCELLED
    assert party.endpoint.timeouts.show(doomed) == (TimeoutState.CANCELLED, None)
    assert party.endpoint.timeouts.cancel(doomed) is CancelResult.CANCELLED
    store = party.endpoint._parts.features.store
    assert store is not None
    assert store.statistics().outcomes == {"cancelled": 1}


@matrix(pairs=WITH_A_DATABASE)
def test_a_send_in_a_transaction_gets_the_answer_about_a_used_id(place: Place) -> None:
    party = Party(place).start()
    first = party.endpoint.send_local("Ping", "first", delay=LATER, message_id="used")
    party.wait_until_stored(first.id)

    with caller(place) as connection:
        again = SendOptions(delay=LATER, message_id="used")
        answers = [
            party.endpoint.send_local("Ping", body, again, session=connection).repeat
            for body in ("first", "second")
        ]
        with pytest.raises(IdInUse, match="'used'"):
            party.endpoint.send_local(
                "Ping", "second", again, session=connection, on_conflict="error"
            )
        new = party.endpoint.send_local("Ping", 1, delay=SOON, session=connection)
        connection.commit()

    assert answers == [RepeatKind.DUPLICATE, RepeatKind.CONFLICT]
    assert new.repeat is None
    party.inbox.wait_for_id(new.message_id)
    assert party.errors.poll() == []
    [left] = party.endpoint.timeouts.list()
    assert left.due == first.due


@matrix(pairs=ONE_DATABASE)
def test_a_replacement_in_a_transaction_is_rolled_back_with_it(place: Place) -> None:
    party = Party(place).start()
    first = party.endpoint.send_local("Ping", "first", delay=LATER, message_id="used")
    party.wait_until_stored(first.id)

    with caller(place) as connection:
        asked = SendOptions(delay=SOON, message_id="used", on_conflict="replace")
        party.endpoint.send_local("Ping", "second", asked, session=connection)
        connection.rollback()
        barrier = party.endpoint.send_local("Ping", "barrier", delay=SOON)
        party.inbox.wait_for_id(barrier.message_id)
        assert party.inbox.of("used") == []
        party.endpoint.send_local("Ping", "third", asked, session=connection)
        connection.commit()

    assert party.inbox.wait_for_id("used").body == "third"


@matrix(pairs=EACH_ONCE)
def test_an_import_past_the_queue_gets_an_answer_for_each_message(place: Place) -> None:
    party = Party(place).start()
    answers: list[RepeatKind | None] = []
    again = SendOptions(delay=LATER, message_id="used")
    party.endpoint.store_many([ToSend(party.name, "Ping", 1, again)])

    party.endpoint.store_many(
        [
            ToSend(party.name, "Ping", 1, again),
            ToSend(party.name, "Ping", 2, again),
            ToSend(party.name, "Ping", 3, SendOptions(delay=LATER)),
        ],
        on_sent=lambda sent: answers.extend(one.repeat for one in sent),
    )

    assert answers == [RepeatKind.DUPLICATE, RepeatKind.CONFLICT, None]
    assert party.endpoint.timeouts.count() == 2
