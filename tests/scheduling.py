"""Which tests of a parallel run have to share a worker."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadGroupScheduling

SPARK: Final = "tests/pipeline/spark/"
_SECOND: Final = tuple(
    f"{SPARK}test_{name}" for name in ("reading", "reconcile", "schedule", "session", "stream")
)


class SparkInTwoWorkers(LoadGroupScheduling):  # type: ignore[misc]  # xdist's types are not exported
    """Any test to whoever is free, but those that use Spark to one of two workers.

    Each of the two has a Spark of its own, which takes half a minute of work to get going: a third
    would bring nothing. What is in which half is so that both take about as long.
    """

    def _split_scope(self, nodeid: str) -> str:
        if not nodeid.startswith(SPARK):
            return nodeid
        return f"{SPARK}2" if nodeid.startswith(_SECOND) else f"{SPARK}1"
