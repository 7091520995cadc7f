"""Handlers of lists: one call for a batch, one savepoint, and a poison message found by itself."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

import pytest
from sqlalchemy import text

from tests.transport.sql.test_handler_batches import (
    COUNT,
    FAILING,
    Doing,
    Ledger,
    Stand,
    ending_the_transaction,
    ledger,
    raising,
)
from timeoutmgr import BatchContext, HandlerContext
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.transport.sql import SqlTransport

__all__ = ["ledger"]

IDS = [str(number) for number in range(COUNT)]


@pytest.mark.parametrize(
    ("position", "failing"),
    [
        (position, failing)
        for position in (0, 3, COUNT - 1)
        for failing in FAILING
        # A call that ends its transaction, and goes on, writes the rest outside of a transaction.
        if failing is not ending_the_transaction or position == COUNT - 1
    ],
)
def test_a_failed_message_of_a_list_leaves_no_effect_and_takes_none_from_its_neighbours(
    transport: SqlTransport, ledger: Ledger, failing: Doing, position: int
) -> None:
    stand = Stand(transport, ledger, {str(position): failing}, lists=True)
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (0, [str(position)])
        assert ledger.ids() == [each for each in IDS if each != str(position)]


@pytest.mark.parametrize("url", ["mysql"], indirect=True)
def test_a_list_that_goes_on_after_the_end_of_its_transaction_is_undone(
    transport: SqlTransport, ledger: Ledger
) -> None:
    """SQLite commits what follows at once; there a function that does this needs batch=1."""
    stand = Stand(transport, ledger, {"3": ending_the_transaction}, lists=True)
    with closing(stand.receiver):
        stand.handle()

        assert stand.left() == (0, ["3"])
        assert ledger.ids() == [each for each in IDS if each != "3"]


def test_a_batch_is_one_call_and_one_transaction(transport: SqlTransport, ledger: Ledger) -> None:
    stand = Stand(transport, ledger, {}, lists=True)
    with closing(stand.receiver):
        stand.handle()

        assert stand.lists == [IDS]
        assert stand.left() == (0, [])
        assert ledger.ids() == IDS
        assert stand.telemetry.snapshot()["handled"] == COUNT


def test_one_statement_writes_for_all_messages(transport: SqlTransport, ledger: Ledger) -> None:
    def note_all(messages: list[object], context: BatchContext) -> None:
        context.session.execute(
            text(f"INSERT INTO {ledger.name} (id, again) VALUES (:id, 0)"),
            [{"id": own.message_id} for own in context.contexts],
        )

    stand = Stand(transport, ledger, {}, handler=cast(Any, note_all), lists=True)
    with closing(stand.receiver):
        stand.handle()

        assert (ledger.ids(), stand.left()) == (IDS, (0, []))


def test_after_a_failed_list_each_message_is_handled_alone(
    transport: SqlTransport, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    stand = Stand(transport, ledger, {"3": raising}, lists=True)
    with closing(stand.receiver):
        stand.handle()

        tried_again = [["3"], ["3"]]  # its immediate attempt, after the others are settled
        assert stand.lists == [IDS, *([each] for each in IDS), *tried_again[1:]]
        assert stand.left() == (0, ["3"])
        [record] = [one for one in caplog.records if vars(one).get("event") == "list_failed"]
        assert "7 messages" in record.getMessage()


def test_a_list_that_fails_once_is_handled_without_an_attempt_of_its_messages(
    transport: SqlTransport, ledger: Ledger
) -> None:
    def fail_in_company(messages: list[object], context: BatchContext) -> None:
        for own in context.contexts:
            ledger.note(own)
        if len(messages) > 1:
            raise ValueError("a deadlock of the program's own")

    stand = Stand(transport, ledger, {}, handler=cast(Any, fail_in_company), lists=True)
    with closing(stand.receiver):
        stand.handle()

        assert (ledger.ids(), stand.left()) == (IDS, (0, []))
        assert "immediate_retries" not in stand.telemetry.snapshot()


@pytest.mark.parametrize("mode", TransactionMode)
def test_each_message_sends_for_itself_and_a_failed_message_sends_nothing(
    transport: SqlTransport, ledger: Ledger, mode: TransactionMode
) -> None:
    def send_one(_ledger: Ledger, context: HandlerContext) -> None:
        context.send("other", "Sent", {"cause": context.message_id})
        if context.message_id == "3":
            raise ValueError("no")

    stand = Stand(transport, ledger, dict.fromkeys(IDS, send_one), mode, lists=True)
    with closing(stand.receiver):
        stand.handle()

    sent = [one.message for one in stand.session.browse("other", 100)]
    causes = [message.headers["NServiceBus.RelatedTo"] for message in sent if message.id != "3"]
    assert sorted(causes) == [each for each in IDS if each != "3"]
