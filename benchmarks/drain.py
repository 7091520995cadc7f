"""The rate of delivery of messages due at one instant, with a million pending and with none.

End to end: from the due instant until the consumer, a separate process, has the last message. Then
the dispatch rate if queues and timeouts share one database, in one transaction, beside the rate
with a broker.
"""

from functools import partial

from harness import pending
from harness.figures import interleave, rate
from harness.report import Report, options, parsed
from harness.runs import dispatched, drained
from harness.servers import servers
from harness.workers import installed


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--pending", type=int, help="far-future timeouts (1,000,000; quick 20,000)")
    parser.add_argument("--only", choices=["pending", "database"], help="one question")
    given = parsed(parser, count=20_000, quick=2_000)
    many = given.pending or (20_000 if given.quick else 1_000_000)
    with servers("postgres", "rabbitmq") as running:
        broker, database = running["rabbitmq"], running["postgres"]
        settings = {"messages": given.count, "body": "512 B", "pending": many, **running.settings}
        report = Report("Draining what is due at one instant", settings)

        if given.only != "database":
            other = running.another("postgres")
            with (
                installed(broker, database, profile=given.profile) as empty,
                installed(broker, other) as full,
            ):
                pending.load(other, pending.far_future(full.name, many))
                samples = interleave(
                    {
                        "drain, nothing else pending": partial(drained, empty, given.count),
                        f"drain, {many:,} pending": partial(drained, full, given.count),
                    },
                    given.rounds,
                )
            report.runs(samples)
            alone, among = samples.values()
            report.notes.append(f"{given.count:,} in {given.count / rate(alone):.2f} s.")
            report.faster(f"drain with {many:,} pending ÷ with none", among, alone, 0.9)

        if given.only != "pending":
            third = running.another("postgres")
            with (
                installed(broker, database) as with_broker,
                installed(third, third, profile=given.profile) as in_one,
            ):
                samples = interleave(
                    {
                        "dispatch, RabbitMQ + PostgreSQL": partial(
                            dispatched, with_broker, given.count
                        ),
                        "dispatch, all in PostgreSQL": partial(dispatched, in_one, given.count),
                    },
                    given.rounds,
                )
            report.runs(samples)
            apart, together = samples.values()
            report.faster("same database ÷ RabbitMQ + PostgreSQL", together, apart, 1.5)
    report.give(given)


if __name__ == "__main__":
    main()
