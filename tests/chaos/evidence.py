"""Input of the judge: deliveries, incidents, and all that a run has shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaos import FaultKind
from chaos.consumer_ledger import Delivery
from chaos.incidents import Incident
from chaos.judge import Evidence
from chaos.producer_ledger import Promise

DUE = 10_000_000


def delivery(name: str, at: float, by: str = "worker-1#1", **more: Any) -> Delivery:
    instant = round(at * 1_000_000)
    values = {"message_id": name, "received_at": instant + 1_000, "redelivered": 0, **more}
    return Delivery(name=name, dispatched_at=instant, sent_by=by, **values)


def incident(process: str, begin: float, end: float) -> Incident:
    return Incident(
        kind=FaultKind.KILL,
        process=process,
        begin=round(begin * 1_000_000),
        end=round(end * 1_000_000),
    )


def evidence(
    deliveries: Sequence[Delivery],
    incidents: Sequence[Incident] = (),
    *,
    promises: Sequence[Promise] = (),
    exactly_once: bool = False,
) -> Evidence:
    all_promises = [Promise(name="a", due=DUE, accepted=True), *promises]
    return Evidence(
        promises={promise.name: promise for promise in all_promises},
        deliveries=deliveries,
        incidents=incidents,
        left={"still stored": 0},
        clock_offset=0,
        exactly_once=exactly_once,
        ended=0,
        seed=1,
    )


TWICE = [delivery("a", 11), delivery("a", 15, "worker-2#1")]
