"""Reading a store: complete rows, two columns, and the memory for ten million rows."""

from harness import pending
from harness.figures import Sample, interleave, say
from harness.report import Report
from harness.spark import jvm_high_water_mb
from pyspark.sql import SparkSession

from timeoutmgr.pipeline import snapshot
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.views import PENDING

from .bench import TIMEOUTS, Bench, Cases, noop

JAVAS = 3
EVERY = ", ".join(PENDING.names)


def reading(bench: Bench, report: Report) -> None:
    """Read all pending timeouts, in several sessions.

    How a JVM compiles JDBC is decided in its first seconds, and changes its processor time by a
    third: a single session would measure this effect.
    """
    store, count = bench.store("reading"), bench.given.count
    pending.load(str(store.database.url), pending.far_future("bench", count))
    found: dict[str, list[Sample]] = {}
    for number in range(1 if bench.given.quick else JAVAS):
        say(f"session {number + 1}")
        with bench.session() as spark:
            cases = _cases(bench, spark, store)
            for name, samples in interleave(cases, bench.given.rounds).items():
                found.setdefault(name, []).extend(samples)
    report.runs(found)
    if bench.has_jdbc:
        all_ours, two_ours, all_theirs, two_theirs = found.values()
        report.cheaper("read ÷ JDBC by ctid, CPU", all_ours, all_theirs, 0.85)
        report.cheaper("read two columns ÷ JDBC pruned, CPU", two_ours, two_theirs, 1.05)


def _cases(bench: Bench, spark: SparkSession, store: Store) -> Cases:
    count = bench.given.count

    def ours(columns: list[str] | None) -> Sample:
        with snapshot(store) as moment:
            return bench.cost.of(
                count, lambda: noop(moment.read(spark, "pending", columns=columns))
            )

    def theirs(columns: str) -> Sample:
        return bench.cost.of(count, lambda: noop(bench.by_ctid(spark, store, TIMEOUTS, columns)))

    cases: Cases = {
        "read, all columns": lambda: ours(None),
        "read, two columns": lambda: ours(["due", "destination"]),
    }
    if bench.has_jdbc:
        cases |= {
            "JDBC by ctid, all columns": lambda: theirs(EVERY),
            "JDBC by ctid, two columns": lambda: theirs("due, destination"),
        }
    return cases


def memory(bench: Bench, spark: SparkSession, report: Report) -> None:
    """Read ten million rows with the default heap."""
    store = bench.store("memory")
    rows = bench.given.rows or (200_000 if bench.given.quick else 10_000_000)
    pending.load(str(store.database.url), pending.far_future("bench", rows))
    with snapshot(store) as moment:
        sample = bench.cost.of(rows, lambda: noop(moment.read(spark, "pending")))
    report.runs({f"read {rows:,} rows": [sample]})
    report.bar("JVM high water", jvm_high_water_mb(), 1_024, at_most=True, unit=" MB")
