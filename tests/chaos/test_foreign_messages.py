"""A foreign message of a run is recognised on arrival, and one that differs has no effect."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from chaos.consumer import DeliveryRecorder, HandlerFailure, recording
from chaos.environment import PROCESS, Environment
from chaos.foreign_messages import foreign_message, route_of
from chaos.handling import PLAIN
from chaos.resources import Resources
from tests.support.waiting import eventually
from timeoutmgr import Endpoint


def test_of_two_foreign_messages_the_one_that_differs_ends_in_the_error_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROCESS, "consumer#1")
    file = f"sqlite:///{tmp_path / 'timeoutmgr.db'}"
    environment = Environment(
        folder=str(tmp_path), broker=file, store=file, suffix="_x", claim_time=5, seed=1
    )
    destination = route_of(environment).destination
    sound = foreign_message(environment, "sound", PLAIN, {"name": "sound"})
    # With the headers of another name, as if somebody had changed the message on the way.
    changed = foreign_message(environment, "other", PLAIN, {"name": "changed"})
    with (
        closing(Resources(environment)) as resources,
        closing(DeliveryRecorder(environment)) as recorder,
    ):
        endpoint = Endpoint(recording(environment.receiving(), recorder, beside=True))
        endpoint.send(destination, PLAIN, changed, message_id="changed")
        endpoint.send(destination, PLAIN, sound, message_id="sound")
        with endpoint:
            eventually(lambda: resources.in_errors() == 1, "the other one has failed")
            eventually(lambda: len(resources.deliveries.read_all()) == 1, "one was handled")
        [delivery] = resources.deliveries.read_all()
        [failed] = resources.failed_messages()

    assert (delivery.name, delivery.foreign) == ("sound", True)
    assert HandlerFailure.__name__ in failed.headers["NServiceBus.ExceptionInfo.ExceptionType"]
