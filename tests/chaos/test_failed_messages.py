"""The judge names failed messages that are lost, repeated, or leave an effect."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.consumer_ledger import Delivery
from chaos.failed_messages import handled_counts
from chaos.failure_ledger import FailureLedgerWriter, error_copies, read_failures
from chaos.judge import Evidence, judge
from chaos.producer_ledger import Promise
from tests.chaos.evidence import DUE, delivery, evidence, incident
from timeoutmgr.message import headers
from timeoutmgr.message.instants import to_wire
from timeoutmgr.message.message import Message

FAILS = Promise(name="f", due=DUE, fails=True, accepted=True)
COPY = delivery("f", 11)
AGAIN = delivery("f", 15, "worker-2#1")


def failed(
    errors: Sequence[Delivery],
    *delivered: Delivery,
    promise: Promise = FAILS,
    exactly_once: bool = False,
    killed: bool = False,
) -> Evidence:
    given = evidence(
        [delivery("a", 11), *delivered],
        [incident("worker-1#1", 12, 12)] if killed else [],
        promises=[promise],
        exactly_once=exactly_once,
    )
    return replace(given, errors=errors)


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        pytest.param(failed([COPY]), [], id="once in the error queue"),
        pytest.param(
            failed([]), ["1 in no error queue although the handler always fails"], id="lost"
        ),
        pytest.param(
            failed([COPY], COPY, exactly_once=True),
            ["1 with an effect of a handler that always fails"],
            id="an effect",
        ),
        pytest.param(
            failed([delivery("a", 11), COPY]),
            ["1 in the error queue without a cause"],
            id="a message that does not fail",
        ),
        pytest.param(failed([COPY, AGAIN]), ["1 twice in the error queue"], id="no fault"),
        pytest.param(failed([COPY, AGAIN], killed=True), [], id="the dispatcher was killed"),
        pytest.param(
            failed([COPY, AGAIN], killed=True, exactly_once=True),
            ["1 twice in the error queue"],
            id="no repeat at all in one transaction",
        ),
        pytest.param(
            failed([COPY, replace(COPY, redelivered=1)]), [], id="handed out again by the broker"
        ),
        pytest.param(
            failed([COPY], promise=replace(FAILS, cancelling=True, cancel="cancelled")),
            ["1 delivered although cancelled"],
            id="cancelled",
        ),
    ],
)
def test_a_message_that_always_fails_has_to_be_in_the_error_queue(
    given: Evidence, broken: list[str]
) -> None:
    assert list(judge(given).broken) == broken


def test_an_early_attempt_is_early_although_it_failed() -> None:
    given = replace(failed([COPY]), failures=[delivery("f", 9.9)])

    assert judge(given).broken == ("1 early",)


def test_a_copy_in_the_error_queue_is_of_the_last_failure_before_it(tmp_path: Path) -> None:
    path = tmp_path / "failures.jsonl"
    assert read_failures(path) == []
    with closing(FailureLedgerWriter(path)) as writer:
        for failure in (COPY, AGAIN):
            writer.write(failure)
    copies = [
        Message(
            id=name,
            headers={headers.TIME_OF_FAILURE: to_wire(round(at * 1_000_000))},
            body=b"",
            content_type="text/plain",
        )
        for name, at in (("f", 12), ("f", 16), ("a", 12))
    ]

    first, second, stranger = error_copies(copies, read_failures(path))

    assert (first, second) == (COPY, AGAIN)
    assert stranger.name == "a"


def test_batches_with_a_failure_and_coroutines_are_counted() -> None:
    rows = [
        delivery("a", 11, batch="consumer#1/1"),
        delivery("b", 11, batch="consumer#1/1", at_once=1),
        delivery("c", 11, batch="consumer#1/2"),
        delivery("d", 11, at_once=40),
    ]
    failures = [delivery("f", 11, batch="consumer#1/1"), delivery("f", 11, batch="consumer#1/3")]

    counts = handled_counts(rows, failures, [COPY])

    assert (counts.batches, counts.largest, counts.with_a_failure) == (1, 3, 1)
    assert (counts.awaited, counts.at_once) == (2, 40)
    assert (counts.failures, counts.in_errors) == (2, 1)
