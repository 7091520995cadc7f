"""APScheduler 3 with its SQLAlchemy store in PostgreSQL; jobs are stored before it starts."""

import time

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from peers import job

WORKER_FIRST = False


def accept(given: job.Given) -> None:
    scheduler = made(given)
    scheduler.start(paused=True)
    for _ in range(given.count):
        scheduler.add_job(job.note, "date", (job.TEXT, job.HEADERS), run_date=given.at)


def work(given: job.Given) -> None:
    made(given).start()
    time.sleep(3600)


def made(given: job.Given) -> BackgroundScheduler:
    return BackgroundScheduler(
        jobstores={"default": SQLAlchemyJobStore(given.url)},
        # The default of a second would discard late jobs; ten threads are its default.
        job_defaults={"misfire_grace_time": None},
        timezone="UTC",
    )


if __name__ == "__main__":
    job.main(accept, work)
