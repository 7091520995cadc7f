"""Which tests of a parallel run have to share a worker."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadGroupScheduling

SPARK: Final = "tests/pipeline/spark/"


class SparkInOneWorker(LoadGroupScheduling):  # type: ignore[misc]  # xdist's types are not exported
    """Any test to whoever is free, but those that use Spark to one worker, which has the one Spark.

    A second takes half a minute of work to get going. Where nothing else is run that is less than
    what two workers save; in a whole run it is more.
    """

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else nodeid
