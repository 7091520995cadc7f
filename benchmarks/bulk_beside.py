"""Scheduling in bulk, with and without the broker, beside procrastinate's batch of 1,000."""

import asyncio
from contextlib import closing
from functools import partial
from importlib import metadata

from harness.bare import in_a_process
from harness.figures import Sample, Watch, interleave
from harness.messages import BODY, DAY, HEADERS, micros
from harness.report import Report, options, parsed
from harness.servers import servers
from harness.workers import Spec, configuration, installed

from timeoutmgr import Endpoint, SendOptions, ToSend
from timeoutmgr.message.instants import from_micros

BATCH = 1_000


def main() -> None:
    given = parsed(options(__doc__), count=20_000, quick=3_000)
    with (
        servers("postgres", "rabbitmq") as running,
        installed(running["rabbitmq"], running["postgres"]) as spec,
        servers("postgres") as theirs,
    ):
        settings = {"messages": given.count, **running.settings}
        settings["procrastinate"] = metadata.version("procrastinate")
        report = Report("Scheduling in bulk", settings)
        samples = interleave(
            {
                "procrastinate, batch_defer": partial(
                    in_a_process, deferred, theirs["postgres"], given.count
                ),
                "Endpoint.send_many": partial(in_a_process, ours, spec, "send_many", given.count),
                "Endpoint.store_many": partial(in_a_process, ours, spec, "store_many", given.count),
            },
            given.rounds,
        )
    report.runs(samples)
    peer, sent, stored = samples.values()
    report.faster("send_many ÷ procrastinate's batch", sent, peer, 2)
    report.faster("store_many ÷ procrastinate's batch", stored, peer, 2)
    report.give(given)


def ours(spec: Spec, way: str, count: int) -> Sample:
    later = SendOptions(delay=86_400, headers=HEADERS)
    with closing(Endpoint(configuration(spec))) as endpoint:
        bulk = getattr(endpoint, way)
        bulk([ToSend(spec.destination, "Warm", BODY, later)])
        watch = Watch()
        return watch.sample(
            bulk(ToSend(spec.destination, "Benchmark", BODY, later) for _ in range(count))
        )


def deferred(url: str, count: int) -> Sample:
    from peers import job
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=url.replace("+psycopg", "")))
    task = app.task(name="note")(job.note)

    async def run() -> Sample:
        async with app.open_async():
            if not await app.check_connection_async():
                await app.schema_manager.apply_schema_async()
            at = task.configure(schedule_at=from_micros(micros() + DAY))
            jobs = [{"text": job.TEXT, "headers": job.HEADERS} for _ in range(BATCH)]
            await at.batch_defer_async(*jobs[:1])
            watch = Watch()
            for start in range(0, count, BATCH):
                await at.batch_defer_async(*jobs[: min(BATCH, count - start)])
            return watch.sample(count)

    return asyncio.run(run())


if __name__ == "__main__":
    main()
