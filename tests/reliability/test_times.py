"""Due times at the edges of calendars and zones: the exact instant, or a refusal at the door."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.acceptance.matrix import EMBEDDED, REFERENCE
from tests.acceptance.place import SOON, Party, Place
from tests.reliability.pairs import on
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.message import headers
from timeoutmgr.message.message import Message

NEW_YORK, BERLIN = ZoneInfo("America/New_York"), ZoneInfo("Europe/Berlin")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # its summer time is half an hour

ZONED = {
    "before the gap": (datetime(2030, 3, 10, 1, 59, tzinfo=NEW_YORK), "2030-03-10T06:59"),
    # An hour that no clock showed: read with the offsets before and after the gap.
    "in the gap": (datetime(2030, 3, 10, 2, 30, tzinfo=NEW_YORK), "2030-03-10T07:30"),
    "in the gap, folded": (
        datetime(2030, 3, 10, 2, 30, tzinfo=NEW_YORK, fold=1),
        "2030-03-10T06:30",
    ),
    "after the gap": (datetime(2030, 3, 10, 3, 0, tzinfo=NEW_YORK), "2030-03-10T07:00"),
    "overlap, first": (datetime(2030, 10, 27, 2, 30, tzinfo=BERLIN), "2030-10-27T00:30"),
    "overlap, second": (
        datetime(2030, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
        "2030-10-27T01:30",
    ),
    "half an hour, first": (datetime(2030, 4, 7, 1, 45, tzinfo=LORD_HOWE), "2030-04-06T14:45"),
    "half an hour, second": (
        datetime(2030, 4, 7, 1, 45, tzinfo=LORD_HOWE, fold=1),
        "2030-04-06T15:15",
    ),
    "an offset of seconds": (
        datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=-14, seconds=-1))),
        "2030-01-01T14:00:01",
    ),
    "the last instant": (datetime.max.replace(tzinfo=UTC), "9999-12-31T23:59:59.999999"),
}

REFUSED: dict[str, dict[str, Any]] = {
    "naive": {"deliver_at": datetime(2030, 1, 1)},
    "past the last instant": {
        "deliver_at": datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-14)))
    },
    "before the first instant": {
        "deliver_at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
    },
    "eight thousand years": {"delay": timedelta(days=8000 * 365.25)},
    "the longest timedelta": {"delay": timedelta.max},
    "more than a float": {"delay": 10**400},
    "not a number": {"delay": float("nan")},
    "for ever": {"delay": float("inf")},
    "negative": {"delay": -1},
    "both": {"delay": 1, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)},
}

WIRE = {
    "leap-second": "2016-12-31 23:59:60:000000 Z",
    "hour-24": "2030-01-01 24:00:00:000000 Z",
    "year-10000": "10000-01-01 00:00:00:000000 Z",
    "year-0": "0000-12-31 00:00:00:000000 Z",
    "an-offset": "9999-12-31 23:59:59:000000 -14:00",
    "a-sign": "-030-01-01 00:00:00:000000 Z",
}


@on(EMBEDDED, REFERENCE)
def test_a_zoned_due_time_is_stored_as_its_exact_instant(place: Place) -> None:
    party = Party(place).start()

    sent = {
        name: party.endpoint.send_local("Ping", name, deliver_at=at)
        for name, (at, _) in ZONED.items()
    }

    party.wait_until_stored(*(one.id for one in sent.values()))
    pending = {one.id: one.due for one in party.endpoint.timeouts.list()}
    expected = {
        name: datetime.fromisoformat(text).replace(tzinfo=UTC) for name, (_, text) in ZONED.items()
    }
    assert {name: one.due for name, one in sent.items()} == expected
    assert {name: pending[one.id or ""] for name, one in sent.items()} == expected


@on(EMBEDDED)
def test_a_value_that_is_not_a_due_time_is_refused_and_nothing_is_sent(place: Place) -> None:
    party = Party(place).start()

    for name, given in REFUSED.items():
        with pytest.raises(InvalidMessage):
            party.endpoint.send_local("Ping", name, **given)

    sentinel = party.endpoint.send_local("Ping", "fence", delay=SOON)
    party.inbox.wait_for_id(sentinel.message_id)
    assert len(party.inbox.arrived) == 1
    assert party.endpoint.timeouts.count() == 0


@on(EMBEDDED, REFERENCE)
def test_a_due_time_of_no_calendar_goes_to_the_error_queue_with_its_sentence(place: Place) -> None:
    party = Party(place).start()
    for name, expire in WIRE.items():
        given = {headers.EXPIRE: expire, headers.DESTINATION: party.name}
        place.put(f"{party.name}.Timeouts", Message(id=name, headers=given, body=b"kept"))

    copies = party.errors.wait_for(len(WIRE))

    assert {copy.id: copy.body for copy in copies} == dict.fromkeys(WIRE, b"kept")
    assert all(headers.EXPIRE in copy.headers[headers.EXCEPTION_MESSAGE] for copy in copies)
    fine = party.endpoint.send_local("Ping", 1, delay=SOON)
    party.inbox.wait_for_id(fine.message_id)
