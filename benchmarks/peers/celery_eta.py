"""Celery, ETA: the worker holds the task in its memory until it is due. RabbitMQ or Redis."""

from celery import Celery

from peers import job

app = Celery("peers.celery_eta", broker=job.given().url)
app.conf.update(task_ignore_result=True, broker_transport_options={"confirm_publish": True})
if app.conf.broker_url.startswith("redis"):
    app.conf.broker_transport_options = {}
note = app.task(name="note")(job.note)


def accept(given: job.Given) -> None:
    for _ in range(given.count):
        note.apply_async((job.TEXT, job.HEADERS), eta=given.at)


def work(given: job.Given) -> None:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["worker", "--concurrency=1", "--loglevel=ERROR", *quiet])


if __name__ == "__main__":
    job.main(accept, work)
