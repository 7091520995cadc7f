"""A store into delay levels, beside one process that only publishes as many."""

from harness import pending
from harness.bare import in_a_process
from harness.figures import Sample, ratio
from harness.levels import WINDOW, emptied, levels, published
from harness.messages import DAY, create_queues
from harness.report import Report
from harness.servers import servers
from pyspark.sql import SparkSession

from timeoutmgr.migration.places import LocationSpec
from timeoutmgr.migration.run import move_all
from timeoutmgr.pipeline.jobs.migrate import Ends, MigrateOptions, migrate, opened

from .bench import Bench, Cases, measured


def migrating(bench: Bench, spark: SparkSession, report: Report) -> None:
    """Move timeouts into delay levels, beside one process that only publishes as many."""
    store, count = bench.store("migrating"), min(bench.given.count, 100_000)
    url, queue = str(store.database.url), "bench.destination"
    with servers("rabbitmq") as running:
        broker = running["rabbitmq"]
        create_queues(broker, queue)
        levels(broker, queue).install()
        settings = bench.folder / "levels.toml"
        settings.write_text(f'endpoint = "bench"\ntransport = "{broker}"\npersistence = "{url}"\n')
        ends = Ends(settings=str(settings), target=LocationSpec(url="native"))

        def filled() -> None:
            pending.clear(url)
            pending.load(url, pending.far_future("bench", count))

        def ours() -> Sample:
            filled()
            with emptied(broker, queue):
                return bench.cost.of(count, lambda: moved(MigrateOptions(ends=ends, tasks=2)))

        def moved(given: MigrateOptions) -> None:
            [found] = migrate(spark, given)
            assert (found.new, found.verified) == (count, True), found

        def plain() -> Sample:
            filled()
            with emptied(broker, queue):
                return bench.cost.of(count, lambda: move_plainly(ends))

        cases: Cases = {
            "migrate into levels, 2 tasks": ours,
            "migrate into levels, plain Python": plain,
            f"published into levels, window of {WINDOW}": lambda: in_a_process(
                published, broker, queue, count
            ),
            "published into levels, over a year": lambda: in_a_process(
                published, broker, queue, count, 365 * DAY
            ),
        }
        first, _second, third, spread = measured(bench, report, cases).values()
    title = "migrate to RabbitMQ ÷ one process with pipelined confirms"
    report.faster(title, first, third, 0.85)
    report.fact("the same ÷ one whose messages are as far apart", ratio(first, spread))


def move_plainly(ends: Ends) -> None:
    """Move all that is pending with the runner that ``timeoutmgr migrate`` has."""
    with opened(ends) as [one]:
        assert move_all(one.parts, one.terms).verified
