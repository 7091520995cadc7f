from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert

from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import to_micros
from timeoutmgr.pipeline.jobs.lateness import lateness, lateness_page
from timeoutmgr.pipeline.options import LatenessOptions
from timeoutmgr.pipeline.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = datetime(2024, 3, 1, tzinfo=UTC)


def write_events(store: Store, lates: list[int], **changed: Any) -> None:
    rows = [
        {
            **{"id": f"{number}", "event": "dispatched", "due": to_micros(DAY)},
            **{"at": to_micros(DAY) + late, "endpoint": "sales", "destination": "billing"},
            **{"attempt": 0, "node": "n", "run_id": None},
        }
        | changed
        for number, late in enumerate(lates)
    ]
    with store.database.begin() as connection:
        connection.execute(insert(store.tables.history), rows)


def slow_and_quick(store: Store) -> list[int]:
    """Write five hundred late messages, a hundred punctual ones, and one that was not sent.

    Return how late the former are.
    """
    chance = random.Random(7)
    slow = [chance.randrange(1, 90_000_000) for _ in range(500)]
    write_events(store, slow)
    write_events(store, [5] * 100, destination="mail")
    write_events(store, [10**9], event="failed")  # was never dispatched
    return slow


@pytest.mark.usefixtures("compiled")
def test_quantiles_are_exact_and_the_worst_group_comes_first(
    spark: SparkSession, postgres: Store
) -> None:
    slow = slow_and_quick(postgres)
    options = LatenessOptions(stores=(postgres.name,), slo=timedelta(seconds=60))

    report = lateness(spark, options, clock=SystemClock())

    worst, best = report.groups
    cuts = quantiles(slow, n=1000, method="inclusive")
    assert (worst["destination"], best["destination"]) == ("billing", "mail")
    assert [worst[name] for name in ("p50", "p90", "p99", "p999")] == pytest.approx(
        [cuts[499], cuts[899], cuts[989], cuts[998]]
    )
    assert worst["late"] == sum(one > 60_000_000 for one in slow)
    assert (worst["least"], worst["most"]) == (min(slow), max(slow))
    assert (best["p999"], best["late"], report.messages) == (5, 0, 600)
    assert report.breaches == [worst]
    assert report.histogram[3] == 100
    assert sum(report.histogram.values()) == 600
    assert report.document()["groups"][0]["day"] == "2024-03-01"
    assert "1 of 2 groups break it" in lateness_page(report)


def test_a_window_has_its_own_messages_with_approximate_quantiles(
    spark: SparkSession, postgres: Store
) -> None:
    slow = slow_and_quick(postgres)
    window: dict[str, Any] = {
        "since": DAY + timedelta(seconds=45),
        "until": DAY + timedelta(seconds=60),
    }
    some = lateness(
        spark,
        LatenessOptions(stores=(postgres.name,), destination="billing", approximate=True, **window),
        clock=SystemClock(),
    )

    inside = sorted(one for one in slow if 45_000_000 <= one < 60_000_000)
    assert (some.messages, some.groups[0]["least"]) == (len(inside), inside[0])
    assert some.groups[0]["p50"] in inside  # the lateness of a message, none between two


def test_groups_that_are_not_named_count_and_a_store_of_two_names_counts_once(
    spark: SparkSession, postgres: Store
) -> None:
    slow_and_quick(postgres)
    same = Path(postgres.name).with_name("same.toml")
    same.write_text(Path(postgres.name).read_text())
    one_named = LatenessOptions(stores=(postgres.name, str(same)), slo=timedelta(0), named=1)

    short = lateness(spark, one_named, clock=SystemClock())

    assert [group["destination"] for group in short.groups] == ["billing"]
    assert (short.messages, short.of_groups, short.broken) == (600, 2, 2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stores": ()}, "neither a store nor an archive"),
        ({"by": ("node",)}, "by is some of"),
        ({"by": ()}, "by is some of"),
        ({"quantile": "p95"}, "quantile is one of"),
        ({"slo": timedelta(seconds=-1)}, "not negative"),
        ({"named": 0}, "named is at least 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        LatenessOptions(**({"stores": ("s",)} | options))
