"""Each fault happens at its time to its process, and leaves an incident."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from chaos import ChaosFailed, Fault, FaultKind
from chaos.forkserver_client import ForkServer
from chaos.supervisor import SupervisedProcess
from tests.chaos.injector import injector
from tests.support.waiting import eventually


def test_a_killed_process_starts_again_under_another_name(process: SupervisedProcess) -> None:
    first = process.pid
    happening = injector(Fault(1.0, FaultKind.KILL, 0.5), process=process)

    happening.step(0.9)
    assert happening.incidents == []
    happening.step(1.0)

    [killed] = happening.incidents
    assert (killed.kind, killed.process) == (FaultKind.KILL, "worker-1#1")
    assert process.incarnation == "worker-1#2"
    assert process.pid != first
    assert process.code is None


def test_a_pause_is_an_incident_once_it_is_over(process: SupervisedProcess) -> None:
    happening = injector(Fault(0.0, FaultKind.PAUSE, 0.5, length=60), process=process)

    happening.step(0.0)
    assert process.is_paused
    assert happening.incidents == []
    happening.calm()

    [paused] = happening.incidents
    assert (paused.kind, paused.process) == (FaultKind.PAUSE, "worker-1#1")
    assert paused.begin < paused.end
    assert not process.is_paused


def test_a_pause_ends_with_its_process(process: SupervisedProcess) -> None:
    faults = (Fault(0.0, FaultKind.PAUSE, 0.5, length=60), Fault(0.0, FaultKind.KILL, 0.5))

    happening = injector(*faults, process=process)
    happening.step(0.0)

    assert [one.kind for one in happening.incidents] == [FaultKind.PAUSE, FaultKind.KILL]
    assert not process.is_paused


def test_a_process_that_ends_by_itself_is_counted_and_no_incident(
    process: SupervisedProcess,
) -> None:
    happening = injector(process=process)
    os.kill(process.pid, signal.SIGTERM)

    def counted() -> bool:
        happening.step(0.0)
        return process.incarnations == 2

    eventually(counted, "it is started again")

    assert process.ended == 1
    assert happening.incidents == []


def test_a_server_that_cannot_be_restarted_ends_the_run(process: SupervisedProcess) -> None:
    def restart() -> None:
        raise OSError("no such server")

    happening = injector(Fault(0.0, FaultKind.RESTART_STORE, 0.5), process=process, restart=restart)
    happening.step(0.0)
    happening.calm()

    with pytest.raises(ChaosFailed, match="no such server"):
        happening.step(1.0)


def test_a_process_that_does_not_start_is_reported_with_its_last_words(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    process = SupervisedProcess(
        name="worker-1",
        fork_server=fork_server,
        entry="json.tool:main",
        arguments=["/no/such/database"],
        environment=tmp_path / "environment.json",
        log=tmp_path / "worker-1.log",
        ready=tmp_path / "ready",
    )
    process.start()

    with pytest.raises(ChaosFailed, match="/no/such/database"):
        process.wait_until_ready()
