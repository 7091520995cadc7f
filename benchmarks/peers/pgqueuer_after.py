"""pgqueuer: jobs in PostgreSQL, from the table straight to a function. No broker, no confirm."""

import asyncio
import json
import os
from datetime import timedelta

import asyncpg
import psycopg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.db import PsycopgDriver

from peers import job

BATCH = "BENCH_PGQUEUER_BATCH"
DRIVER = "BENCH_PGQUEUER_DRIVER"  # asyncpg, or psycopg as ours is


async def driver_of(given: job.Given) -> AsyncpgDriver | PsycopgDriver:
    if os.environ.get(DRIVER) != "psycopg":
        return AsyncpgDriver(await asyncpg.connect(given.postgres))
    connection = await psycopg.AsyncConnection.connect(given.postgres, autocommit=True)
    return PsycopgDriver(connection)


async def accept(given: job.Given) -> None:
    queries = Queries(await driver_of(given))
    payload = json.dumps({"text": job.TEXT, "headers": job.HEADERS}).encode()
    for start in range(0, given.count, 1000):
        size = min(1000, given.count - start)
        after = [timedelta(seconds=given.delay)] * size
        await queries.enqueue(["note"] * size, [payload] * size, [0] * size, after)


async def work(given: job.Given) -> None:
    driver = await driver_of(given)
    await Queries(driver).install()
    queuer = PgQueuer(driver)

    @queuer.entrypoint("note")
    async def note(found: object) -> None:
        job.note(**json.loads(found.payload))

    batch = int(os.environ.get(BATCH, "10"))
    await queuer.run(dequeue_timeout=timedelta(seconds=0.1), batch_size=batch)


if __name__ == "__main__":
    job.main(lambda given: asyncio.run(accept(given)), lambda given: asyncio.run(work(given)))
