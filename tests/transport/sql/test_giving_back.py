"""Messages behind a slow handler go back, in every part of a batch, and never twice."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from tests.transport.sql.test_handler_batches import COUNT, Doing, Ledger, Stand, ledger
from timeoutmgr import HandlerContext
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.endpoint.handlers import ANY
from timeoutmgr.transport.batch_progress import LONG_HANDLING
from timeoutmgr.transport.sql import SqlTransport

__all__ = ["ledger"]

RECEIVE = TransactionMode.RECEIVE_ONLY
ALL = [str(number) for number in range(COUNT)]
EACH_ALONE = frozenset({ANY})


def relieved(stand: Stand, before: Doing) -> Doing:
    """Return a handler that takes long after *before*, and meets the other thread meanwhile."""

    def handle(ledger: Ledger, context: HandlerContext) -> None:
        before(ledger, context)
        stand.now += LONG_HANDLING
        relief = threading.Thread(target=stand.pump.give_back)
        relief.start()
        relief.join()

    return handle


def nothing(_ledger: Ledger, _context: HandlerContext) -> None:
    """Have no effect."""


def test_a_slow_handler_with_the_only_writer_is_not_waited_for(
    transport: SqlTransport, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    doings: dict[str, Doing] = {}
    stand = Stand(transport, ledger, doings)
    doings["0"] = relieved(stand, Ledger.note)
    with closing(stand.receiver):
        stand.handle()

        stays = transport.database.is_sqlite
        assert stand.left() == (0 if stays else COUNT - 1, [])
        assert ledger.ids() == (ALL if stays else ["0"])
        assert set(stand.calls.values()) == {1}
    assert "could not give back" not in caplog.text, "a wait for the writer has ended in vain"


@pytest.mark.parametrize("alone", [frozenset[str](), EACH_ALONE], ids=["together", "alone"])
def test_messages_go_back_from_all_parts_of_a_batch(
    transport: SqlTransport, ledger: Ledger, alone: frozenset[str]
) -> None:
    doings: dict[str, Doing] = {}
    stand = Stand(transport, ledger, doings, RECEIVE, alone)
    doings["0"] = relieved(stand, nothing)
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (COUNT - 1, [])
        assert stand.calls == {"0": 1}
        assert stand.telemetry.snapshot()["messages_given_back"] == COUNT - 1


def test_no_part_of_a_batch_is_begun_after_the_stop(
    transport: SqlTransport, ledger: Ledger
) -> None:
    doings: dict[str, Doing] = {}
    stand = Stand(transport, ledger, doings, alone=EACH_ALONE)
    doings["0"] = lambda _ledger, _context: stand.stop.set()
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (COUNT - 1, [])
        assert stand.calls == {"0": 1}


def test_no_message_that_waits_is_begun_after_a_lost_lease(
    transport: SqlTransport, ledger: Ledger
) -> None:
    doings: dict[str, Doing] = dict.fromkeys(ALL, nothing)
    stand = Stand(transport, ledger, doings, RECEIVE, EACH_ALONE)
    doings["0"] = lambda _ledger, _context: stand.receiver.release_tags(stand.receiver.held())
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (COUNT, [])
        assert stand.calls == {"0": 1}
