"""A repeat of delay levels has an explanation, or the judge names it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.consumer_ledger import Delivery
from chaos.judge import Evidence, judge
from chaos.producer_ledger import Promise
from tests.chaos.evidence import DUE, delivery, evidence, incident

NATIVE = Promise(
    name="a", due=DUE, accepted=True, natively=True, by="producer-2#1", since=1_000_000
)
UNCLEAR = replace(NATIVE, unclear=[2_000_000])
CAME = Promise(name="first", due=DUE, accepted=True)
SENT_ON = Promise(name="a", due=DUE, accepted=True, natively=True, after="first")


def out_of_levels(sent: float, by: str, received: float = 11) -> Delivery:
    times = {"received_at": round(received * 1_000_000), "through_levels": True}
    return delivery("a", sent, by, **times)


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        pytest.param(
            evidence([out_of_levels(2, "producer-2#1")], promises=[NATIVE]), [], id="all is well"
        ),
        pytest.param(
            evidence([out_of_levels(2, "producer-2#1", received=9.9)], promises=[NATIVE]),
            ["1 early"],
            id="early",
        ),
        pytest.param(
            evidence(
                [delivery("a", 10.1), out_of_levels(10.3, "producer-2#1")],
                [incident("producer-2#1", 2, 2)],
                promises=[UNCLEAR],
            ),
            [],
            id="into the store without an answer, then into the levels",
        ),
        pytest.param(
            evidence(
                [delivery("a", 10.1), out_of_levels(10.3, "producer-2#1")],
                [incident("producer-2#1", 2, 2)],
                promises=[NATIVE],
            ),
            ["1 repeated without a crash"],
            id="each send was answered",
        ),
        pytest.param(
            evidence(
                [delivery("a", 10.1), out_of_levels(10.3, "producer-2#1")],
                [incident("producer-2#1", 2, 2)],
                promises=[replace(UNCLEAR, natively=False)],
            ),
            ["1 repeated without a crash"],
            id="a store would have known it",
        ),
        pytest.param(
            evidence(
                [
                    *(
                        delivery("first", at, f"worker-{at}#1", received_by="native-2#1")
                        for at in (11, 12)
                    ),
                    out_of_levels(11.1, "native-2#1", 13),
                    out_of_levels(12.1, "native-2#1", 13),
                ],
                [incident("worker-11#1", 11.5, 11.5)],
                promises=[CAME, SENT_ON],
            ),
            [],
            id="what came twice is sent on twice",
        ),
        pytest.param(
            evidence(
                [
                    delivery("first", 11, received_by="native-2#1"),
                    out_of_levels(11.1, "native-2#1", 13),
                    out_of_levels(12.1, "native-2#1", 13),
                ],
                [incident("worker-1#1", 11.5, 11.5)],
                promises=[CAME, SENT_ON],
            ),
            ["1 repeated without a crash"],
            id="it came once",
        ),
    ],
)
def test_the_judge_explains_repeats_of_delay_levels(given: Evidence, broken: list[str]) -> None:
    assert list(judge(given).broken) == broken
