"""The judge names lost and early messages, leftovers, and repeats without a cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos import FaultKind
from chaos.incidents import SERVERS
from chaos.judge import Evidence, judge
from chaos.producer_ledger import Promise
from tests.chaos.evidence import DUE, TWICE, delivery, evidence, incident


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        pytest.param(evidence([delivery("a", 11)]), [], id="all is well"),
        pytest.param(evidence([]), ["1 lost"], id="lost"),
        pytest.param(evidence([delivery("a", 9.9)]), ["1 early"], id="early"),
        pytest.param(
            evidence([delivery("a", 11, message_id="b")]),
            ["1 repeated under another id"],
            id="another id",
        ),
        pytest.param(
            evidence([delivery("a", 11), delivery("b", 11)]),
            ["1 delivered and never sent"],
            id="a stranger",
        ),
        pytest.param(evidence(TWICE), ["1 repeated without a crash"], id="no incident"),
        pytest.param(
            evidence(TWICE, [incident("worker-1#1", 12, 12)]), [], id="the first sender was killed"
        ),
        pytest.param(
            evidence(TWICE, [incident("worker-2#1", 10, 14)]), [], id="the second was paused"
        ),
        pytest.param(evidence(TWICE, [incident(SERVERS, 12, 13)]), [], id="a server went down"),
        pytest.param(
            evidence(TWICE, [incident("worker-1#2", 12, 12), incident("worker-3#1", 12, 12)]),
            ["1 repeated without a crash"],
            id="others were killed",
        ),
        pytest.param(
            evidence(TWICE, [incident("worker-1#1", 16, 16)]),
            ["1 repeated without a crash"],
            id="killed too late",
        ),
        pytest.param(
            evidence(TWICE, [incident("worker-1#1", 12, 12)], exactly_once=True),
            ["1 repeated where one transaction spans queue and store"],
            id="no repeat at all in one transaction",
        ),
        pytest.param(
            evidence([delivery("a", 11), delivery("a", 11, redelivered=1)]),
            [],
            id="handed out again by the broker",
        ),
        pytest.param(
            evidence([delivery("a", 11), delivery("a", 11)]),
            ["1 repeated without a crash"],
            id="one dispatch came twice",
        ),
    ],
)
def test_the_judge_names_each_promise_that_was_broken(given: Evidence, broken: list[str]) -> None:
    assert list(judge(given).broken) == broken


@pytest.mark.parametrize(
    ("answer", "is_delivered", "broken"),
    [
        ("cancelled", False, []),
        ("cancelled", True, ["1 delivered although cancelled"]),
        ("will_be_cancelled", False, []),
        ("will_be_cancelled", True, ["1 delivered although cancelled"]),
        ("unknown", False, []),
        ("unknown", True, []),
        ("too_late", True, []),
        ("too_late", False, ["1 lost"]),
        ("maybe_sent", True, []),
        ("maybe_sent", False, []),
        (None, False, []),
    ],
)
def test_the_answer_of_a_cancel_binds(
    answer: str | None, is_delivered: bool, broken: list[str]
) -> None:
    promise = Promise(name="b", due=DUE, accepted=True, cancelling=True, cancel=answer)
    deliveries = [delivery("a", 11), *([delivery("b", 11)] if is_delivered else [])]

    assert list(judge(evidence(deliveries, promises=[promise])).broken) == broken


@pytest.mark.parametrize(
    ("accepted", "dead", "broken"),
    [
        (True, {"b": DUE}, []),
        (True, {}, ["1 in no dead-letter queue"]),
        (True, {"b": DUE, "a": DUE}, ["1 dead without a cause"]),
        (True, {"b": DUE - 1}, ["1 early"]),
        (False, {}, []),
        (False, {"b": DUE}, []),
    ],
)
def test_a_message_for_no_queue_has_to_be_a_dead_letter(
    accepted: bool, dead: dict[str, int], broken: list[str]
) -> None:
    promise = Promise(name="b", due=DUE, dies=True, accepted=accepted)
    given = replace(evidence([delivery("a", 11)], promises=[promise]), dead=dead)

    verdict = judge(given)

    assert list(verdict.broken) == broken
    assert verdict.dead == len(dead)


def test_a_send_without_an_answer_is_held_to_nothing() -> None:
    promise = Promise(name="b", due=DUE, accepted=False)

    verdict = judge(evidence([delivery("a", 11)], promises=[promise]))

    assert verdict.broken == ()
    assert verdict.accepted == 1


@pytest.mark.parametrize("exactly_once", [True, False])
def test_the_verdict_says_where_no_repeat_is_allowed(exactly_once: bool) -> None:
    line = str(judge(evidence([delivery("a", 11)], exactly_once=exactly_once)))

    assert line.endswith("no repeat is allowed") is exactly_once


def test_lost_replies_are_counted_and_explain_a_repeat() -> None:
    lost = replace(incident("worker-1#1", 12, 12), kind=FaultKind.LOSE_COMMIT)

    verdict = judge(evidence(TWICE, [lost]))

    assert verdict.broken == ()
    assert verdict.lost_replies == 1


def test_a_run_without_messages_is_no_success() -> None:
    nothing = replace(evidence([]), promises={})

    assert judge(nothing).broken == ("nothing was accepted",)


def test_leftovers_are_named() -> None:
    left = replace(evidence([delivery("a", 11)]), left={"in the error queue": 2})

    assert judge(left).broken == ("2 in the error queue",)
