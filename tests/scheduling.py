"""Which tests of a parallel run have to share a worker."""

from __future__ import annotations

from typing import Any, Final

from xdist.scheduler import LoadGroupScheduling

PIPELINE: Final = "tests/pipeline/"
SPARK: Final = f"{PIPELINE}spark/"
# These files take as long as all other files there.
_FIRST: Final = tuple(
    f"{SPARK}test_{name}" for name in ("commands", "lateness", "schedule", "session")
)

# Each worker with such a test would start a server that speaks S3, and a fork server of jobs.
_LAKES: Final = ("-s3", "_to_s3[", "of_a_bucket", "test_killed_jobs.py", "a_load_that_is_killed")

# Each of these tests reads the whole house into syntax trees, which a process keeps.
_READERS: Final = (
    *(f"tests/test_{name}" for name in ("exits", "import_rule", "log_lines", "measures")),
    "tests/crash/test_steps.py::test_every_registered_point",
    "tests/message/test_short_keys.py::test_every_cache",
)
# The tests of such a file share an object that each further worker would make anew: a browser, the
# levels of a broker, a run of pytest, an endpoint that has read the whole corpus.
_WHOLE_FILES: Final = (
    "tests/web/test_journeys.py",
    *(f"tests/migration/test_{name}.py" for name in ("celery_levels", "into_levels", "levels")),
    "tests/testing/test_conformance_delayed_notices.py",
    "tests/fuzz/test_corpus.py",
    "tests/cli/test_examples.py",
)


class GroupedByWhatTheyShare(LoadGroupScheduling):  # type: ignore[misc]  # xdist's types are not exported
    """Any test goes to a free worker, but tests that share a costly object go to the same worker.

    Spark's tests go to two workers, which share a JVM: a single worker keeps the JVM busy for half
    of the time; a third worker would only wait. The readers of the house go to one, the tests of
    tables on S3 and of killed jobs to one, and so do the tests of a file that share an object.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SPARK):
            return "first" if nodeid.startswith(_FIRST) else "second"
        if nodeid.startswith(_WHOLE_FILES):
            return nodeid.partition("::")[0]
        if nodeid.startswith(PIPELINE) and any(part in nodeid for part in _LAKES):
            return "lakes"
        return "readers" if nodeid.startswith(_READERS) else nodeid

    def _reschedule(self, node: Any) -> None:
        """Drop the complete units first: xdist counts every unit of a worker after each test."""
        units = self.assigned_work[node]
        for scope in [scope for scope, unit in units.items() if all(unit.values())]:
            del units[scope]
        super()._reschedule(node)
