from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from chaos.consumer_ledger import Delivery
from chaos.producer_ledger import Promise

ROOT = Path(__file__).parents[2]
FLIGHTS = ROOT / "examples" / "flights"
NOTICES = 1659  # 985 flights, 674 of them late

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, str(FLIGHTS / "run.py"), "--seconds", "4", "--json", *arguments]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": path}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        outcome: dict[str, Any] = json.loads(ended.stdout)
        assert list(tmp_path.iterdir()) == []
        return outcome

    return run


def assert_promises_kept(outcome: dict[str, Any]) -> None:
    assert outcome["broken"] == []
    assert outcome["accepted"] == outcome["delivered"] == NOTICES
    assert outcome["lost"] == outcome["early"] == outcome["repeated"] == 0


@pytest.mark.slow
def test_a_day_of_flights_arrives_exactly_once_on_the_embedded_database(run: Run) -> None:
    outcome = run()

    assert_promises_kept(outcome)
    assert outcome["by_the_kill"] == 0


@pytest.mark.long
@pytest.mark.slow
def test_a_day_of_flights_arrives_on_rabbitmq_and_postgresql(
    run: Run, rabbitmq_url: str, postgres_url: str
) -> None:
    outcome = run("--broker", rabbitmq_url, "--store", postgres_url)

    assert_promises_kept(outcome)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the example's module of that name; its program finds it beside itself."""
    monkeypatch.syspath_prepend(FLIGHTS)
    yield importlib.import_module("judge")
    sys.modules.pop("judge")


KILLED_AT = 50_000_000
DUE = 10_000_000


@pytest.mark.parametrize(
    ("deliveries", "beside", "broken"),
    [
        ([("a", 11, 12), ("b", 11, 12)], 0, []),
        ([("a", 11, 12)], 0, ["1 lost"]),
        ([("a", 9, 9.9), ("b", 11, 12)], 0, ["1 early"]),
        ([("a", 11, 12), ("b", 11, 12), ("b", 13, 14)], 100, ["1 repeated without a crash"]),
        ([("a", 11, 12), ("b", 11, 12), ("b", 51, 52)], 100, []),
        (
            [("a", 11, 12), ("b", 11, 12), ("b", 51, 52)],
            0,
            ["1 repeated by the kill, at most 0 may be"],
        ),
        ([("a", 11, 12), ("b", 11, 12), ("c", 11, 12)], 0, ["1 delivered and never sent"]),
    ],
)
def test_the_judge_names_each_promise_that_was_broken(
    judge: Any,
    deliveries: list[tuple[str, float, float]],
    beside: int,
    broken: list[str],
) -> None:
    promises = {name: Promise(name=name, due=DUE, accepted=True) for name in ("a", "b")}
    delivered = [
        Delivery(
            message_id=name,
            name=name,
            dispatched_at=round(dispatched * 1_000_000),
            received_at=round(received * 1_000_000),
            redelivered=0,
        )
        for name, dispatched, received in deliveries
    ]

    verdict = judge.judge(
        promises,
        delivered,
        left={"still stored": 0},
        killed_at=KILLED_AT,
        allowed_by_the_kill=beside,
    )

    assert list(verdict.broken) == broken


def test_the_judge_names_the_messages_left_behind(judge: Any) -> None:
    verdict = judge.judge(
        {}, [], left={"in the error queue": 2}, killed_at=None, allowed_by_the_kill=0
    )

    assert list(verdict.broken) == ["2 in the error queue", "nothing was accepted"]


def test_the_day_has_the_real_times_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FLIGHTS)
    day = importlib.import_module("day")
    sys.modules.pop("day")

    found = day.notices(day.read_flights())

    assert len(found) == len({notice.id for notice in found}) == NOTICES
    assert [notice.at for notice in found] == sorted(notice.at for notice in found)
    assert found[0].id == "US1895-EWR-CheckInCloses"
    assert found[0].at == datetime(2013, 12, 23, 4, 15, tzinfo=day.EASTERN)
    assert found[-1].at == datetime(2013, 12, 24, 1, 40, tzinfo=day.EASTERN)
