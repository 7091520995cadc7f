"""Recurring timeouts in the testing kit: their runs come in order with all other messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.testing.kit import START, Shop
from timeoutmgr import HandlerContext
from timeoutmgr.testing import TimeoutKit

DAY = timedelta(days=1)


def reporting(**given: Any) -> tuple[Shop, TimeoutKit]:
    """Return a shop with a schedule of every day at 06:00, and its kit."""
    shop = Shop()
    shop.config.recurring("daily", "Note", "report", every="1 day at 06:00", **given)
    return shop, shop.open()


def at(day: int, hour: int = 6) -> datetime:
    return datetime(2030, 1, day, hour, tzinfo=UTC)


def test_an_advance_handles_each_run_at_its_instant_in_order_with_other_messages() -> None:
    shop, kit = reporting()
    kit.send_local("Note", "between", delay=timedelta(days=2, hours=12))

    kit.advance(days=14)

    runs: list[tuple[Any, datetime]] = [("report", at(day)) for day in range(1, 15)]
    between = [("between", START + timedelta(days=2, hours=12))]
    assert shop.noted == runs[:3] + between + runs[3:]
    kit.assert_scheduled("Note", due=at(15))
    assert len(kit.scheduled()) == 1


def test_the_first_run_is_scheduled_before_the_clock_moves() -> None:
    _shop, kit = reporting()

    found = kit.assert_scheduled("Note", due=at(1))

    assert found.body == "report"


def test_a_message_that_a_run_sends_is_handled_before_the_next_run() -> None:
    shop = Shop()
    shop.config.recurring("daily", "Report", None, every=DAY)

    @shop.config.handler("Report")
    def report(_body: object, context: HandlerContext) -> None:
        context.send_local("Note", "sent", delay=timedelta(hours=3))

    shop.open().advance(days=2, hours=4)

    # An interval runs at its multiples: at midnight here, but not at the start, which is past.
    assert shop.noted == [("sent", START + day * DAY + timedelta(hours=3)) for day in (1, 2)]


@pytest.mark.parametrize(
    ("catch_up", "runs"),
    [("one", [at(4, 12), at(5)]), ("all", [at(4, 12)] * 3 + [at(5)]), ("none", [at(5)])],
)
def test_a_paused_schedule_rests_and_catches_up_by_its_policy(
    catch_up: str, runs: list[datetime]
) -> None:
    shop, kit = reporting(catch_up=catch_up)
    kit.advance_to(at(1, 12))
    kit.endpoint.recurring.pause("daily")
    kit.advance_to(at(4, 12))
    assert [when for _body, when in shop.noted] == [at(1)]

    kit.endpoint.recurring.resume("daily")
    kit.advance_to(at(5, 12))

    assert [when for _body, when in shop.noted][1:] == runs


def test_a_cancelled_run_is_left_out_and_the_next_run_comes() -> None:
    shop, kit = reporting()
    [run] = kit.scheduled()
    assert run.timeout_id is not None
    kit.endpoint.timeouts.cancel(run.timeout_id)

    kit.advance(days=2)

    assert [when for _body, when in shop.noted] == [at(2)]
