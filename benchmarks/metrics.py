"""What metrics cost: processor time of a dispatched timeout with metrics, and without.

With metrics each message is observed, the store and the queues are sampled, and the page is served,
as by ``timeoutmgr run --metrics-address``. Both ways of a dispatch: by a broker, and in a database.
"""

from dataclasses import replace
from functools import partial

from harness.figures import interleave
from harness.report import Report, options, parsed
from harness.runs import dispatched
from harness.servers import servers
from harness.workers import installed


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=["broker", "database"], help="one way of a dispatch")
    given = parsed(parser, count=20_000, quick=2_000)
    with servers("postgres", "rabbitmq") as running:
        settings = {"messages": given.count, "body": "512 B", **running.settings}
        report = Report("Metrics", settings)
        ways = {"RabbitMQ + PostgreSQL": running["rabbitmq"], "all in PostgreSQL": None}
        for name, broker in ways.items():
            if given.only == ("database" if broker else "broker"):
                continue
            database = running.another("postgres")
            with installed(broker or database, database) as spec:
                samples = interleave(
                    {
                        f"{name}, without metrics": partial(dispatched, spec, given.count),
                        f"{name}, with metrics": partial(
                            dispatched, replace(spec, observed=True), given.count
                        ),
                    },
                    given.rounds,
                )
            report.runs(samples)
            without, with_metrics = samples.values()
            report.cheaper(f"{name}: with metrics ÷ without", with_metrics, without, 1.02)
    report.give(given)


if __name__ == "__main__":
    main()
