"""Each fault happens at its time to its process, and what became of it is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.testing.chaos.troubling import trouble
from timeoutmgr.testing.chaos import ChaosFailed, Fault, FaultKind
from timeoutmgr.testing.chaos.births import Nursery
from timeoutmgr.testing.chaos.troupe import Part
from timeoutmgr.testing.signals import eventually


def test_a_killed_process_lives_again_under_another_name(part: Part) -> None:
    first = part.pid
    happening = trouble(Fault(1.0, FaultKind.KILL, 0.5), part=part)

    happening.step(0.9)
    assert happening.incidents == []
    happening.step(1.0)

    [killed] = happening.incidents
    assert (killed.kind, killed.process) == (FaultKind.KILL, "worker-1#1")
    assert part.life == "worker-1#2"
    assert part.pid != first
    assert part.code is None


def test_a_pause_is_an_incident_once_it_is_over(part: Part) -> None:
    happening = trouble(Fault(0.0, FaultKind.PAUSE, 0.5, length=60), part=part)

    happening.step(0.0)
    assert part.is_paused
    assert happening.incidents == []
    happening.calm()

    [paused] = happening.incidents
    assert (paused.kind, paused.process) == (FaultKind.PAUSE, "worker-1#1")
    assert paused.begin < paused.end
    assert not part.is_paused


def test_a_pause_ends_with_the_life_of_the_process(part: Part) -> None:
    faults = (Fault(0.0, FaultKind.PAUSE, 0.5, length=60), Fault(0.0, FaultKind.KILL, 0.5))

    happening = trouble(*faults, part=part)
    happening.step(0.0)

    assert [one.kind for one in happening.incidents] == [FaultKind.PAUSE, FaultKind.KILL]
    assert not part.is_paused


def test_a_process_that_ends_by_itself_is_counted_and_no_incident(part: Part) -> None:
    happening = trouble(part=part)
    os.kill(part.pid, signal.SIGTERM)

    def counted() -> bool:
        happening.step(0.0)
        return part.lives == 2

    eventually(counted, "it is started again")

    assert part.ended == 1
    assert happening.incidents == []


def test_a_server_that_cannot_be_restarted_ends_the_run(part: Part) -> None:
    def restart() -> None:
        raise OSError("no such server")

    happening = trouble(Fault(0.0, FaultKind.RESTART_STORE, 0.5), part=part, restart=restart)
    happening.step(0.0)
    happening.calm()

    with pytest.raises(ChaosFailed, match="no such server"):
        happening.step(1.0)


def test_a_process_that_does_not_start_is_told_with_its_last_words(
    tmp_path: Path, nursery: Nursery
) -> None:
    part = Part(
        name="worker-1",
        nursery=nursery,
        entry="json.tool:main",
        arguments=["/no/such/database"],
        scene=tmp_path / "scene.json",
        log=tmp_path / "worker-1.log",
        ready=tmp_path / "ready",
    )
    part.start()

    with pytest.raises(ChaosFailed, match="/no/such/database"):
        part.wait_until_ready()
