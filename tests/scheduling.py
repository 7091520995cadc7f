"""Which tests of a parallel run have to share a worker."""

from __future__ import annotations

from typing import Any, Final

from xdist.scheduler import LoadGroupScheduling

SPARK: Final = "tests/pipeline/spark/"
# These files take as long as all other files there.
_FIRST: Final = tuple(
    f"{SPARK}test_{name}" for name in ("archive", "commands", "lateness", "migrate", "stream")
)


class SparkInTwoWorkers(LoadGroupScheduling):  # type: ignore[misc]  # xdist's types are not exported
    """Any test goes to a free worker, but Spark's tests go to two workers, which share a JVM.

    A single worker keeps the JVM busy for half of the time; a third worker would only wait.
    """

    def _split_scope(self, nodeid: str) -> str:
        if not nodeid.startswith(SPARK):
            return nodeid
        return "first" if nodeid.startswith(_FIRST) else "second"

    def _reschedule(self, node: Any) -> None:
        """Drop the complete units first: xdist counts every unit of a worker after each test."""
        units = self.assigned_work[node]
        for scope in [scope for scope, unit in units.items() if all(unit.values())]:
            del units[scope]
        super()._reschedule(node)
