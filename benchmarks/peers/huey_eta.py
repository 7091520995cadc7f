"""huey in SQLite, synced: a schedule that is read each second."""

from huey import SqliteHuey

from peers import job

huey = SqliteHuey(filename=job.given().url.removeprefix("sqlite:///"), fsync=True, results=False)
note = huey.task(name="note")(job.note)


def accept(given: job.Given) -> None:
    for _ in range(given.count):
        note.schedule(args=(job.TEXT, job.HEADERS), eta=given.at)


def work(given: job.Given) -> None:
    huey.create_consumer(workers=1, scheduler_interval=1).run()


if __name__ == "__main__":
    job.main(accept, work)
