from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.clock import START, FakeClock
from tests.support.makers import SECOND, a_composer, a_message
from timeoutmgr.contracts import OnConflict, Timeout
from timeoutmgr.errors import (
    DelayedDeliveryDisabled,
    InvalidMessage,
    MessageTooLarge,
    Unsupported,
)
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros, to_wire
from timeoutmgr.message.message import Outgoing, enclosed_types
from timeoutmgr.message.routes import timeout_id, to_timeout_manager
from timeoutmgr.message.validation import Limits
from timeoutmgr.satellites.timeout_manager.timeouts import read_timeout
from timeoutmgr.sender.composer import Composer, SendOptions


def to_sales(outgoing: Outgoing, due: Micros) -> Outgoing:
    return to_timeout_manager(outgoing, due, "sales.Timeouts")


@pytest.fixture
def composer() -> Composer:
    return replace(a_composer(FakeClock(), to_sales), remembering_delays=to_sales)


def headers_of(composer: Composer, **options: Any) -> dict[str, str]:
    composed = composer.compose("billing", "Bill", {}, SendOptions(**options))
    return dict(composed.outgoing.message.headers)


@pytest.mark.behaviour(10)
def test_a_message_that_is_not_delayed_goes_straight_to_its_destination(composer: Composer) -> None:
    composed = composer.compose("billing", "Bill", {"a": 1}, SendOptions())

    assert composed.outgoing.destination == "billing"
    assert (composed.due, composed.sent.id, composed.sent.due) == (None, None, None)


@pytest.mark.behaviour(17)
def test_the_senders_headers_are_written(composer: Composer) -> None:
    assert (
        headers_of(composer).items()
        >= {
            "NServiceBus.MessageId": "new-1",
            "NServiceBus.CorrelationId": "new-1",
            "NServiceBus.ConversationId": "new-1",
            "NServiceBus.EnclosedMessageTypes": "Bill",
            "NServiceBus.ContentType": "application/json",
            "NServiceBus.MessageIntent": "Send",
            "NServiceBus.TimeSent": to_wire(START),
            "NServiceBus.OriginatingEndpoint": "sales",
            "NServiceBus.ReplyToAddress": "sales",
        }.items()
    )


@pytest.mark.behaviour(19)
def test_a_delay_is_written_as_the_senders_now_plus_the_delay(composer: Composer) -> None:
    written = headers_of(composer, delay=timedelta(seconds=90))

    assert written[headers.EXPIRE] == to_wire(START + 90 * SECOND)


@pytest.mark.behaviour(19)
def test_an_instant_is_written_as_given(composer: Composer) -> None:
    written = headers_of(composer, deliver_at=datetime(2031, 1, 2, 3, 4, 5, 6, UTC))

    assert written[headers.EXPIRE] == "2031-01-02 03:04:05:000006 Z"


@pytest.mark.behaviour(10)
def test_send_returns_the_given_instant(composer: Composer) -> None:
    given = datetime(2031, 1, 2, 3, 4, 5, 6, UTC)

    assert composer.compose("billing", "Bill", {}, SendOptions(deliver_at=given)).sent.due == given


@pytest.mark.behaviour(10)
def test_send_returns_id_and_due_of_a_delayed_message(composer: Composer) -> None:
    sent = composer.compose("billing", "Bill", {}, SendOptions(delay=60, message_id="m9")).sent

    assert sent.id == timeout_id("sales", "m9")
    assert sent.due == datetime(2030, 6, 1, 12, 1, tzinfo=UTC)


@pytest.mark.behaviour(11)
def test_options_are_reusable_and_each_send_has_a_message_of_its_own(composer: Composer) -> None:
    options = SendOptions(delay=60)

    first = composer.compose("billing", "Bill", {}, options)
    second = composer.compose("billing", "Bill", {}, options)

    assert first.outgoing.destination == second.outgoing.destination == "sales.Timeouts"
    assert first.sent.message_id != second.sent.message_id


@pytest.mark.behaviour(6)
@pytest.mark.parametrize(
    "options", [{"delay": 0}, {"deliver_at": datetime(2031, 1, 1, tzinfo=UTC)}]
)
def test_a_delay_without_a_capable_part_raises_the_documented_sentence(options: Any) -> None:
    with pytest.raises(DelayedDeliveryDisabled) as refused:
        a_composer(FakeClock()).compose("billing", "Bill", {}, SendOptions(**options))

    assert str(refused.value).startswith(
        "Cannot delay delivery of messages when TimeoutManager is disabled or there is no "
        "infrastructure support for delayed messages."
    )
    assert "config.enable_feature(TimeoutManager())" in str(refused.value)


@pytest.mark.behaviour(13)
def test_a_delay_with_a_time_to_be_received_is_refused(composer: Composer) -> None:
    with pytest.raises(InvalidMessage, match="messages of type 'Bill'"):
        headers_of(composer, delay=1, time_to_be_received=timedelta(seconds=5))


def test_a_time_to_be_received_is_written_for_a_message_that_is_not_delayed(
    composer: Composer,
) -> None:
    written = headers_of(composer, time_to_be_received=timedelta(seconds=5))

    assert written[headers.TIME_TO_BE_RECEIVED] == "00:00:05"


@pytest.mark.parametrize("wrong", [timedelta(seconds=-1), timedelta(0), 5, "00:00:05"])
def test_a_time_to_be_received_that_is_no_positive_duration_is_refused(
    composer: Composer, wrong: Any
) -> None:
    with pytest.raises(InvalidMessage, match="time_to_be_received"):
        headers_of(composer, time_to_be_received=wrong)


@pytest.mark.parametrize(
    "name",
    [
        headers.EXPIRE,
        headers.DESTINATION,
        headers.CLEAR_TIMEOUTS,
        headers.MESSAGE_ID,
        headers.WAKE,
        headers.TIMEOUT_ID,
        headers.CHUNK_VERSION,
        headers.DELIVER_AT,
    ],
)
def test_a_header_that_the_manager_sets_itself_is_refused(composer: Composer, name: str) -> None:
    with pytest.raises(InvalidMessage, match="set by the timeout manager itself"):
        headers_of(composer, headers={name: "x"})


@pytest.mark.parametrize("name", ["CC", "bcc", "x-death", "X-Delay", "compression"])
def test_a_header_that_steers_a_broker_is_refused(composer: Composer, name: str) -> None:
    with pytest.raises(InvalidMessage, match="steers the broker"):
        headers_of(composer, headers={name: "x"})


def test_a_header_that_is_no_string_is_refused(composer: Composer) -> None:
    with pytest.raises(InvalidMessage, match="strings"):
        headers_of(composer, headers={"retries": 3})


def test_headers_that_are_no_mapping_are_refused(composer: Composer) -> None:
    with pytest.raises(InvalidMessage, match="mapping of names to texts"):
        headers_of(composer, headers=["retries"])


@pytest.mark.parametrize("saga", ["", "x" * 201, "a\nb", 5])
def test_a_saga_id_that_is_no_printable_text_is_refused(composer: Composer, saga: Any) -> None:
    with pytest.raises(InvalidMessage, match="saga id"):
        headers_of(composer, saga_id=saga)


@pytest.mark.parametrize("kind", ["", None, 5])
def test_a_message_type_that_is_no_name_is_refused(composer: Composer, kind: Any) -> None:
    with pytest.raises(InvalidMessage, match="message type"):
        composer.compose("billing", kind, {}, SendOptions())


def test_an_empty_message_id_is_refused_and_not_replaced(composer: Composer) -> None:
    with pytest.raises(InvalidMessage, match="message id"):
        headers_of(composer, message_id="")


def test_the_allow_list_holds_for_delayed_messages_by_their_final_destination() -> None:
    composer = a_composer(FakeClock(), to_sales, Limits(allowed_destinations=("shipping",)))

    with pytest.raises(InvalidMessage, match="allowed_destinations"):
        composer.compose("billing", "Bill", {}, SendOptions(delay=1))


@pytest.mark.behaviour(35)
def test_an_oversized_body_is_refused_at_the_door() -> None:
    composer = a_composer(FakeClock(), to_sales, Limits(max_body=10))

    with pytest.raises(MessageTooLarge, match="body"):
        composer.compose("billing", "Bill", bytes(11), SendOptions(delay=1))


@pytest.mark.behaviour(35)
def test_a_message_accepted_by_the_sender_is_accepted_by_the_manager_too() -> None:
    limits = Limits(max_headers=2000)
    composer = a_composer(FakeClock(), to_sales, limits)
    fixed = composer.compose("billing", "Bill", {}, SendOptions(message_id="m1"))
    used = sum(len(name) + len(value) for name, value in fixed.outgoing.message.headers.items())
    filling = {"x": "y" * (2000 - used - 1)}

    delayed = composer.compose(
        "billing", "Bill", {}, SendOptions(message_id="m1", delay=60, headers=filling)
    )

    stored = read_timeout(delayed.outgoing.message, "sales", limits, START)
    assert isinstance(stored, Timeout)


def test_the_id_returned_to_the_sender_is_the_stored_id(composer: Composer) -> None:
    composed = composer.compose("billing", "Bill", {}, SendOptions(delay=60))

    stored = read_timeout(composed.outgoing.message, "sales", Limits(), START)

    assert stored.id == composed.sent.id


def test_sends_of_a_handler_carry_the_ids_of_the_handled_message(composer: Composer) -> None:
    cause = a_message("cause", correlation_id="corr", conversation_id="conv")

    written = composer.compose("billing", "Bill", {}, SendOptions(), cause).outgoing.message.headers

    assert written[headers.RELATED_TO] == "cause"
    assert written[headers.CORRELATION_ID] == "corr"
    assert written[headers.CONVERSATION_ID] == "conv"


# --- a used id --------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["replace", "error", OnConflict.REPLACE])
def test_the_choice_for_a_used_id_travels_with_the_message(
    composer: Composer, asked: OnConflict | str
) -> None:
    assert headers_of(composer, delay=7, on_conflict=asked)[headers.ON_CONFLICT] == asked


@pytest.mark.parametrize("asked", [None, "keep", OnConflict.KEEP])
def test_to_keep_the_first_message_is_the_default_and_needs_no_header(
    composer: Composer, asked: OnConflict | str | None
) -> None:
    assert headers.ON_CONFLICT not in headers_of(composer, delay=7, on_conflict=asked)


def test_only_a_given_due_time_is_marked_as_given(composer: Composer) -> None:
    at = datetime(2031, 1, 2, tzinfo=UTC)

    assert headers_of(composer, deliver_at=at)[headers.DELIVER_AT_GIVEN] == "True"
    assert headers.DELIVER_AT_GIVEN not in headers_of(composer, delay=7)


def test_an_unknown_conflict_policy_is_refused_by_the_sender(composer: Composer) -> None:
    with pytest.raises(InvalidMessage, match="keep, replace, error, got 'maybe'"):
        headers_of(composer, delay=7, on_conflict="maybe")


def test_a_message_that_is_not_delayed_has_no_used_id(composer: Composer) -> None:
    with pytest.raises(InvalidMessage, match="not delayed"):
        headers_of(composer, on_conflict="replace")


@pytest.mark.parametrize("asked", list(OnConflict))
def test_a_route_that_remembers_no_ids_refuses_to_check_for_used_ids(asked: OnConflict) -> None:
    forgetful = a_composer(FakeClock(), to_sales)

    with pytest.raises(Unsupported, match="on_conflict"):
        headers_of(forgetful, delay=7, on_conflict=asked)


@pytest.mark.parametrize("name", [headers.ON_CONFLICT, headers.DELIVER_AT_GIVEN])
def test_the_headers_of_a_used_id_are_the_timeout_managers(composer: Composer, name: str) -> None:
    with pytest.raises(InvalidMessage, match="set by the timeout manager"):
        headers_of(composer, delay=7, headers={name: "replace"})


def test_labels_are_written_on_delayed_messages_alone(composer: Composer) -> None:
    given = {"tenant": "a"}

    assert headers_of(composer, labels=given, delay=1)[headers.LABELS] == '["tenant=a"]'
    assert headers.LABELS not in headers_of(composer, labels=given)
    assert headers.LABELS not in headers_of(composer, delay=1)


def test_labels_are_refused_where_no_store_finds_them(composer: Composer) -> None:
    with pytest.raises(Unsupported, match="labels without the timeout manager's store"):
        headers_of(replace(composer, remembering_delays=None), labels={"a": "b"}, delay=1)


@pytest.mark.parametrize("message_type", ["", " ", "\t;", ", Shop", " ; "])
def test_a_type_by_which_no_handler_is_found_is_refused(
    composer: Composer, message_type: str
) -> None:
    with pytest.raises(InvalidMessage, match="a message type is a name"):
        composer.compose("billing", message_type, {}, SendOptions())


def test_a_type_may_name_its_assembly_for_a_foreign_receiver(composer: Composer) -> None:
    kind = "Shop.Placed, Shop, Version=1;Shop.IPlaced, Shop"
    sent = composer.compose("billing", kind, {}, SendOptions()).outgoing.message

    assert sent.headers[headers.ENCLOSED_MESSAGE_TYPES] == kind
    assert enclosed_types(sent) == ["Shop.Placed", "Placed", "Shop.IPlaced", "IPlaced"]


@pytest.mark.parametrize("options", [{"delay": 1}, None, "x"])
def test_options_of_another_class_are_refused_also_from_a_bulk_or_a_middleware(
    composer: Composer, options: Any
) -> None:
    changing = replace(composer, middleware=[lambda message: replace(message, options=options)])

    for one, given in ((composer, options), (changing, SendOptions())):
        with pytest.raises(InvalidMessage, match="options of a send are a SendOptions, got"):
            one.compose("billing", "Bill", {}, given)


@pytest.mark.parametrize("given", ["text/\0plain", "text/plain\n", "", " "])
def test_a_content_type_that_is_no_printable_text_is_refused(
    composer: Composer, given: str
) -> None:
    with pytest.raises(InvalidMessage, match="a content type is printable text, got "):
        composer.compose("billing", "Bill", {}, SendOptions(content_type=given))
