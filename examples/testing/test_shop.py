"""Tests of the shop: no server, no sleep. Run them with ``pytest`` in this folder."""

from datetime import UTC, datetime, timedelta

import pytest
import shop
from sqlalchemy.orm import Session

from timeoutmgr import CancelResult
from timeoutmgr.testing import TimeoutKit


@pytest.fixture
def reminder(timeouts: TimeoutKit, session: Session) -> str | None:
    placed = shop.place_order(timeouts.endpoint, session, "A7")
    session.commit()
    return placed


def test_a_reminder_goes_out_14_days_later(
    timeouts: TimeoutKit, session: Session, reminder: str
) -> None:
    timeouts.advance(days=13)
    assert timeouts.sent(destination="mail") == []

    timeouts.advance(days=1)

    assert [message.body for message in timeouts.sent(destination="mail")] == [{"order": "A7"}]
    assert session.get_one(shop.Order, "A7").reminders == 1


def test_a_cancelled_reminder_stays_away(timeouts: TimeoutKit, reminder: str) -> None:
    assert timeouts.endpoint.timeouts.cancel(reminder) is CancelResult.CANCELLED

    timeouts.advance(days=14)

    assert timeouts.sent(destination="mail") == []


def test_a_rescheduled_reminder_goes_out_at_its_new_time(
    timeouts: TimeoutKit, reminder: str
) -> None:
    timeouts.endpoint.timeouts.reschedule(reminder, delay=timedelta(days=20))

    timeouts.advance(days=19)
    assert timeouts.sent(destination="mail") == []
    timeouts.advance(days=1)

    assert len(timeouts.sent(destination="mail")) == 1


@pytest.mark.timeoutmgr(raises=False)
def test_an_export_that_fails_is_tried_again_and_ends_in_the_error_queue(
    timeouts: TimeoutKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def fail(order: str) -> None:
        attempts.append(timeouts.now)
        raise ConnectionError("the accounts are away")

    monkeypatch.setattr(shop, "upload", fail)
    timeouts.send_local("ExportOrder", {"order": "A7"})
    began = timeouts.now

    timeouts.advance(hours=1)

    later = began + timedelta(minutes=10)
    assert attempts == [began, began, later, later]
    [failure] = timeouts.errors
    assert failure.message.type == "ExportOrder"
    assert isinstance(failure.exception, ConnectionError)


def test_a_paid_order_has_no_reminder(
    timeouts: TimeoutKit, session: Session, reminder: str
) -> None:
    timeouts.assert_scheduled("PaymentOverdue", saga="A7", due=timedelta(days=14))

    timeouts.send_local("OrderPaid", {"order": "A7"})
    timeouts.drain()

    timeouts.assert_not_scheduled(saga="A7")
    assert session.get_one(shop.Order, "A7").is_paid


def test_an_order_that_is_rolled_back_has_no_reminder(
    timeouts: TimeoutKit, session: Session
) -> None:
    shop.place_order(timeouts.endpoint, session, "A7")
    session.rollback()
    timeouts.assert_not_scheduled("PaymentOverdue")

    shop.place_order(timeouts.endpoint, session, "A8")
    session.commit()
    timeouts.assert_scheduled("PaymentOverdue", saga="A8")


@pytest.mark.timeoutmgr(start=datetime(2030, 3, 29, 12, tzinfo=UTC))
def test_the_report_goes_out_at_six_each_day_also_in_summer_time(timeouts: TimeoutKit) -> None:
    timeouts.advance(days=3)

    sent = timeouts.sent(destination="reports")
    assert [message.body for message in sent] == 3 * [{"to": "all"}]
    timeouts.assert_scheduled("DailyReport", due=datetime(2030, 4, 2, 4, tzinfo=UTC))
