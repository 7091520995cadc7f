"""``reconcile`` proves a restored store, and does not miss what was erased."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipeline.rows import row
from tests.pipeline.test_erase import erased
from tests.pipeline.test_restore import archived, filled, restored, verdicts
from timeoutmgr.clock import SystemClock
from timeoutmgr.pipeline.jobs.reconcile import reconcile
from timeoutmgr.pipeline.options import ReconcileOptions
from timeoutmgr.pipeline.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verdicts_of(spark: SparkSession, store: Store) -> dict[str, int]:
    report = reconcile(spark, ReconcileOptions(stores=(store.name,)), clock=SystemClock())
    assert not report.is_broken
    return dict(Counter({str(name): count for name, count in report.counts.items()}))


def test_a_restored_store_has_the_verdicts_of_its_source_and_erased_ones_are_erased(
    spark: SparkSession, store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    source, target = store_of("sqlite"), store_of("sqlite")
    filled(source, {1, 2, 3}, {7: "dispatched", 8: "cancelled", 9: "failed"})
    archived(source, str(tmp_path / "history"))
    restored(target, str(tmp_path / "history"))

    before = Counter(verdicts(source).values())
    restored_verdicts = verdicts_of(spark, target)
    erased(target, ids=(row(1)["id"], row(7)["id"]))

    assert (
        restored_verdicts == before == {"pending": 3, "ok": 1, "cancelled": 1, "dead_lettered": 1}
    )
    assert verdicts_of(spark, target) == {
        **{"pending": 2, "cancelled": 1, "dead_lettered": 1},
        "erased": 2,
    }
