"""procrastinate: jobs in PostgreSQL, polled each second."""

import asyncio

from procrastinate import App, PsycopgConnector

from peers import job

app = App(connector=PsycopgConnector(conninfo=job.given().postgres))
note = app.task(name="note")(job.note)


async def accept(given: job.Given) -> None:
    async with app.open_async():
        at = note.configure(schedule_at=given.at)
        for start in range(0, given.count, 1000):
            size = min(1000, given.count - start)
            jobs = [{"text": job.TEXT, "headers": job.HEADERS} for _ in range(size)]
            await at.batch_defer_async(*jobs)


async def work(given: job.Given) -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await app.run_worker_async(concurrency=1, fetch_job_polling_interval=1.0)


if __name__ == "__main__":
    job.main(lambda given: asyncio.run(accept(given)), lambda given: asyncio.run(work(given)))
