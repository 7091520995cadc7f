"""The migration of a run is begun again after each kill and each end, until it is to finish."""

from __future__ import annotations

from pathlib import Path

from timeoutmgr.testing.chaos import Fault, FaultKind
from timeoutmgr.testing.chaos.births import Nursery
from timeoutmgr.testing.chaos.migration import Migration
from timeoutmgr.testing.chaos.trouble import Trouble
from timeoutmgr.testing.chaos.troupe import Part
from timeoutmgr.testing.signals import eventually


def migration(tmp_path: Path, nursery: Nursery, entry: str) -> Migration:
    return Migration(
        name="migration",
        nursery=nursery,
        entry=entry,
        scene=tmp_path / "scene.json",
        log=tmp_path / "migration.log",
        ready=tmp_path,
        app="shop:endpoint",
        seed=1,
    )


def test_a_killed_migration_is_gone_on_with(tmp_path: Path, nursery: Nursery, part: Part) -> None:
    killed = migration(tmp_path, nursery, "signal:pause")
    killed.start()
    fault = Fault(0.0, FaultKind.KILL_MIGRATION, 0.5)
    happening = Trouble([fault], [part], [part], {}, {}, killed)

    happening.step(0.0)

    [incident] = happening.incidents
    assert (incident.kind, incident.process) == (FaultKind.KILL_MIGRATION, "migration#1")
    assert killed.life == "migration#2"
    assert killed.code is None
    killed.stop()


def test_a_migration_is_begun_again_until_it_is_to_finish(tmp_path: Path, nursery: Nursery) -> None:
    ends_well = migration(tmp_path, nursery, "sys:exit")
    ends_well.start()

    def has_lived(lives: int) -> bool:
        ends_well.tend()
        return ends_well.lives >= lives

    eventually(lambda: has_lived(3), "it is begun again and again")
    assert not ends_well.is_finished
    ends_well.finish()

    def is_over() -> bool:
        ends_well.tend()
        return ends_well.is_finished

    eventually(is_over, "it has come to its end")
    lives = ends_well.lives
    ends_well.tend()
    assert (ends_well.lives, ends_well.ended) == (lives, 0)
