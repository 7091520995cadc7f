"""Which tests of a parallel run have to share a worker."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadGroupScheduling

SPARK: Final = "tests/pipeline/spark/"


class SparkInOneWorker(LoadGroupScheduling):  # type: ignore[misc]  # xdist's types are not exported
    """Any test to whoever is free, but all that use Spark to one: a JVM costs more than they do."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else nodeid
