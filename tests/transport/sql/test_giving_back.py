"""Messages behind a slow handler go back, in every part of a batch, and never twice."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from tests.transport.sql.test_handler_batches import (
    COUNT,
    Doing,
    Ledger,
    Stand,
    ending_the_transaction,
    ledger,
)
from timeoutmgr import HandlerContext
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.endpoint.handlers import ANY
from timeoutmgr.errors import TransportUnavailable
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
        try:
            stand.handle()
        except TransportUnavailable as error:
            pytest.fail(f"a wait for the writer has ended in vain: {error}")

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


def test_messages_go_back_behind_a_slow_repeated_attempt(
    transport: SqlTransport, ledger: Ledger
) -> None:
    doings: dict[str, Doing] = {}
    stand = Stand(transport, ledger, doings, RECEIVE, EACH_ALONE)

    def fail_first(ledger: Ledger, context: HandlerContext) -> None:
        if stand.calls["0"] == 1:
            raise ValueError("no")
        relieved(stand, nothing)(ledger, context)

    doings["0"] = fail_first
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (COUNT - 1, [])
        assert stand.calls == {"0": 2}


def test_messages_of_an_undone_batch_go_back_behind_a_slow_message(
    transport: SqlTransport, ledger: Ledger
) -> None:
    doings: dict[str, Doing] = dict.fromkeys(ALL, nothing)
    stand = Stand(transport, ledger, doings)

    def end_the_first_transaction(ledger: Ledger, context: HandlerContext) -> None:
        if stand.calls["1"] == 1:
            ending_the_transaction(ledger, context)

    def be_slow_alone(ledger: Ledger, context: HandlerContext) -> None:
        if stand.calls["0"] == 2:
            relieved(stand, nothing)(ledger, context)

    doings |= {"0": be_slow_alone, "1": end_the_first_transaction}
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (COUNT - 1, [])
        assert stand.calls["0"] == 2
        assert max(stand.calls[one] for one in ALL[1:]) == 1


def test_nothing_is_begun_after_a_return_that_failed(
    transport: SqlTransport, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    doings: dict[str, Doing] = dict.fromkeys(ALL, nothing)
    stand = Stand(transport, ledger, doings, RECEIVE, EACH_ALONE)
    doings["0"] = relieved(stand, nothing)

    def stand_back(*_: object) -> int:
        raise TransportUnavailable("the connection is lost")

    monkeypatch.setattr(stand.receiver, "stand_back", stand_back)
    with closing(stand.receiver):
        with pytest.raises(TransportUnavailable, match="the connection is lost"):
            stand.handle()

        assert stand.left() == (COUNT - 1, [])
        assert stand.calls == {"0": 1}


def test_messages_that_are_acknowledged_when_received_do_not_go_back(
    transport: SqlTransport, ledger: Ledger
) -> None:
    doings: dict[str, Doing] = dict.fromkeys(ALL, nothing)
    stand = Stand(transport, ledger, doings, TransactionMode.NONE)
    doings["0"] = relieved(stand, nothing)
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (0, [])
        assert set(stand.calls) == set(ALL)


def test_messages_are_counted_as_handled_after_their_commit(
    transport: SqlTransport, ledger: Ledger
) -> None:
    doings: dict[str, Doing] = dict.fromkeys(ALL, nothing)
    stand = Stand(transport, ledger, doings)
    doings[ALL[-1]] = lambda _ledger, _context: stand.receiver.release_tags(stand.receiver.held())
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (COUNT, [])
    assert "handled" not in stand.telemetry.snapshot()
