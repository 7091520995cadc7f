"""The consumer's handlers fail as the seed says, and a failed attempt leaves no row."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from chaos.consumer import DeliveryRecorder, recording
from chaos.environment import PROCESS, Environment
from chaos.failed_messages import handled_counts
from chaos.failure_ledger import FAILURES, read_failures
from chaos.handling import Failing
from chaos.resources import Resources
from tests.support.waiting import eventually
from timeoutmgr import Endpoint, SendOptions, ToSend

NAMES = [f"p1-{number}" for number in range(60)]


def test_a_failing_member_of_a_batch_is_undone_and_ends_in_the_error_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROCESS, "consumer#1")
    file = f"sqlite:///{tmp_path / 'timeoutmgr.db'}"
    environment = Environment(
        folder=str(tmp_path),
        broker=file,
        store=file,
        suffix="_x",
        claim_time=5,
        seed=1,
        failing=0.3,
        awaited=0.5,
    )
    plan = environment.handling
    always = {name for name in NAMES if plan.failing_of(name) is Failing.ALWAYS}
    with (
        closing(Resources(environment)) as resources,
        closing(DeliveryRecorder(environment)) as recorder,
    ):
        endpoint = Endpoint(recording(environment.receiving(), recorder, beside=True))
        endpoint.send_many(
            ToSend(
                environment.consumer,
                plan.message_type(name),
                {"name": name},
                SendOptions(message_id=name),
            )
            for name in NAMES
        )
        with endpoint:  # started now: a batch has several messages
            eventually(lambda: resources.in_errors() == len(always), "all have failed")
            handled = len(NAMES) - len(always)  # none may be in the hands of an endpoint that stops
            eventually(lambda: len(resources.deliveries.read_all()) == handled, "all are handled")
        rows = resources.deliveries.read_all()
        in_errors = [message.id for message in resources.failed_messages()]

    assert sorted(in_errors) == sorted(always)
    assert sorted(row.name for row in rows) == sorted(set(NAMES) - always)
    counts = handled_counts(rows, read_failures(environment.file(FAILURES)), [])
    assert counts.with_a_failure > 0
    assert 0 < counts.awaited < len(rows)
