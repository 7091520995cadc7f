"""The migration of a run is begun again after each kill and each end, until it is to finish."""

from __future__ import annotations

from pathlib import Path

from chaos import Fault, FaultKind
from chaos.fault_injector import FaultInjector
from chaos.forkserver_client import ForkServer
from chaos.migration import Migration
from chaos.supervisor import SupervisedProcess
from tests.support.waiting import eventually


def migration(tmp_path: Path, fork_server: ForkServer, entry: str) -> Migration:
    return Migration(
        name="migration",
        fork_server=fork_server,
        entry=entry,
        environment=tmp_path / "environment.json",
        log=tmp_path / "migration.log",
        ready=tmp_path,
        app="shop:endpoint",
        seed=1,
    )


def test_a_killed_migration_is_continued(
    tmp_path: Path, fork_server: ForkServer, process: SupervisedProcess
) -> None:
    killed = migration(tmp_path, fork_server, "signal:pause")
    killed.start()
    fault = Fault(0.0, FaultKind.KILL_MIGRATION, 0.5)
    happening = FaultInjector([fault], [process], [process], {}, {}, killed)

    happening.step(0.0)

    [incident] = happening.incidents
    assert (incident.kind, incident.process) == (FaultKind.KILL_MIGRATION, "migration#1")
    assert killed.incarnation == "migration#2"
    assert killed.code is None
    killed.stop()


def test_a_migration_is_begun_again_until_it_is_to_finish(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    ends_well = migration(tmp_path, fork_server, "sys:exit")
    ends_well.start()

    def has_begun(incarnations: int) -> bool:
        ends_well.supervise()
        return ends_well.incarnations >= incarnations

    eventually(lambda: has_begun(3), "it is begun again and again")
    assert not ends_well.is_finished
    ends_well.finish()

    def is_over() -> bool:
        ends_well.supervise()
        return ends_well.is_finished

    eventually(is_over, "it has come to its end")
    incarnations = ends_well.incarnations
    ends_well.supervise()
    assert (ends_well.incarnations, ends_well.ended) == (incarnations, 0)
