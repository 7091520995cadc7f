"""Messages that do not fit into memory together leave soon, in one sub-batch after another."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from tests.acceptance.matrix import EMBEDDED, REFERENCE, Pair, matrix
from tests.acceptance.place import PROMPT, SOON, Party
from timeoutmgr import TransactionMode
from timeoutmgr.persistence.sql.dispatch import lock

SIZE: Final = 3 * 1024 * 1024
COUNT: Final = 7


@matrix(
    pairs=[
        EMBEDDED,
        REFERENCE,
        Pair("postgres", "postgres"),
        Pair("mysql", "mysql"),
        Pair("sqlite", "sqlite", TransactionMode.RECEIVE_ONLY),
    ]
)
def test_large_messages_of_one_instant_all_come_once_and_soon(party: Party) -> None:
    assert COUNT * SIZE > 2 * lock.TOGETHER
    at = datetime.now(UTC) + 20 * SOON
    texts = [str(number) * SIZE for number in range(COUNT)]

    sent = [party.endpoint.send_local("Ping", text, deliver_at=at) for text in texts]
    arrivals = [party.inbox.wait_for_id(one.message_id) for one in sent]

    assert [one.body for one in arrivals] == texts
    assert all(0 <= one.lateness < PROMPT for one in arrivals)
    assert len(party.inbox.arrived) == COUNT
    party.wait_until_dispatched(*(one.id for one in sent))
    assert party.telemetry.counted("timeouts_gone") == 0
