"""Assertions of the testing kit, and the fake context."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from tests.testing.kit import START, Shop
from timeoutmgr import HandlerContext
from timeoutmgr.errors import ConfigurationError, InvalidMessage
from timeoutmgr.testing import FakeContext

DAY = timedelta(days=1)


@dataclass
class PaymentOverdue:
    order: str


def test_an_expected_timeout_is_found_by_each_of_its_properties() -> None:
    kit = Shop().open()
    kit.send_local("Note", 1, delay=DAY, saga_id="A7")

    found = kit.assert_scheduled("Note", saga="A7", due=DAY)

    assert (found.body, found.due, found.destination) == (1, START + DAY, "sales")
    kit.assert_scheduled(due=START + DAY)
    kit.assert_scheduled(due=DAY + timedelta(seconds=1))
    kit.assert_scheduled(due=DAY + timedelta(hours=1), tolerance=timedelta(hours=1))
    kit.assert_not_scheduled("Other")
    kit.assert_not_scheduled(saga="A8")
    kit.assert_not_scheduled(due=DAY + timedelta(seconds=1.1))


def test_a_failed_assertion_lists_what_is_scheduled() -> None:
    kit = Shop().open()
    kit.send_local("Note", {"order": 7}, delay=2 * DAY, saga_id="A7")
    kit.send("billing", "Bill", 8, delay=DAY)

    with pytest.raises(AssertionError) as missing:
        kit.assert_scheduled("Note", saga="A8", due=DAY)
    with pytest.raises(AssertionError) as unexpected:
        kit.assert_not_scheduled("Note")

    lines = (
        "scheduled are:\n"
        "  Bill to billing, due 2030-01-02 00:00:00+00:00, body 8\n"
        "  Note to sales, saga A7, due 2030-01-03 00:00:00+00:00, body {'order': 7}"
    )
    assert str(missing.value) == (
        "expected a timeout of type 'Note' of saga 'A8' due 2030-01-02 00:00:00+00:00 "
        f"(± 0:00:01), and none is scheduled; {lines}"
    )
    assert str(unexpected.value) == (
        "expected no timeout of type 'Note', and Note to sales, saga A7, due "
        f"2030-01-03 00:00:00+00:00, body {{'order': 7}} is scheduled; {lines}"
    )


def test_a_failed_assertion_says_that_nothing_is_scheduled() -> None:
    with pytest.raises(AssertionError, match="nothing is scheduled"):
        Shop().open().assert_scheduled()


def test_a_type_of_messages_is_expected_by_its_class() -> None:
    kit = Shop().open()
    kit.send_local(PaymentOverdue("A7"), delay=DAY)

    assert kit.assert_scheduled(PaymentOverdue).body == {"order": "A7"}
    with pytest.raises(AssertionError, match="expected no timeout of type 'PaymentOverdue'"):
        kit.assert_not_scheduled(PaymentOverdue)


@pytest.mark.parametrize("expected", [{"saga": 7}, {"saga": ""}, {"type": object}, {"type": 7}])
def test_an_expectation_that_no_message_can_meet_is_refused(expected: dict[str, Any]) -> None:
    kit = Shop().open()

    for check in (kit.assert_scheduled, kit.assert_not_scheduled):
        with pytest.raises((InvalidMessage, ConfigurationError), match=r" is .*, got |object"):
            check(**expected)


def test_a_due_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="no time zone"):
        Shop().open().assert_scheduled(due=datetime(2030, 1, 2))


def remind(body: dict[str, int], context: HandlerContext) -> None:
    """Do all that a handler can."""
    assert context.saga_id == "A7"
    context.clear_timeouts("A7")
    context.send("mail", "Letter", body)
    context.reply("Answer", body)
    context.send_local("Remind", body, delay=DAY, saga_id="A7")


def test_a_fake_context_collects_what_a_handler_does() -> None:
    context = FakeContext("Remind", {"order": 7}, saga_id="A7", reply_to="web", delivery_count=2)

    remind(context.body, context)

    assert [(one.type, one.destination) for one in context.sent] == [
        ("Letter", "mail"),
        ("Answer", "web"),
        ("Remind", "testing"),
    ]
    assert context.sent[-1].due is not None
    assert context.sent[-1].saga_id == "A7"
    assert context.cleared == ["A7"]
    assert (context.message_type, context.delivery_count) == ("Remind", 2)


def test_a_fake_context_keeps_the_critical_errors_that_a_handler_raised() -> None:
    context = FakeContext("Print")

    context.raise_critical_error("Printing is impossible")

    assert context.critical_errors == ["Printing is impossible"]


def test_a_fake_context_of_a_typed_message_has_its_object() -> None:
    context = FakeContext(PaymentOverdue("A7"))

    assert (context.message_type, context.body) == ("PaymentOverdue", PaymentOverdue("A7"))


def test_a_fake_context_refuses_what_is_no_message_and_no_keyword_of_it() -> None:
    wrong: Any = {"saga": "A7"}

    with pytest.raises(TypeError, match=r"takes saga_id, .* and session, got saga"):
        FakeContext("OrderPlaced", **wrong)
    with pytest.raises(ConfigurationError, match="dict"):
        FakeContext(wrong)
    with pytest.raises(InvalidMessage, match="is its own body"):
        FakeContext(PaymentOverdue("A7"), {"order": "B8"})


def test_a_fake_context_checks_sends_as_an_endpoint_does() -> None:
    context = FakeContext("Remind")

    with pytest.raises(InvalidMessage, match="names no reply address"):
        context.reply("Answer", 1)
    with pytest.raises(InvalidMessage, match="cannot be written as JSON"):
        context.send("mail", "Letter", object())
    assert context.sent == []


def test_a_fake_context_has_a_session(memory: Engine) -> None:
    assert FakeContext("Remind").session.scalar(select(1)) == 1
    with Session(memory) as mine:
        assert FakeContext("Remind", session=mine).session is mine


def test_a_fake_context_has_the_methods_of_a_context_with_their_signatures() -> None:
    public = [name for name in vars(HandlerContext) if not name.startswith("_")]

    assert issubclass(FakeContext, HandlerContext)
    for name in public:
        theirs, ours = (
            inspect.getattr_static(each, name) for each in (HandlerContext, FakeContext)
        )
        assert isinstance(theirs, property) == isinstance(ours, property)
        if not isinstance(theirs, property):
            assert inspect.signature(ours) == inspect.signature(theirs)
