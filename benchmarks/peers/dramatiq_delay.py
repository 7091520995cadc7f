"""dramatiq on RabbitMQ, confirmed: a delay queue, and the worker's memory until it is due."""

import time

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from peers import job

broker = RabbitmqBroker(url=job.given().url, confirm_delivery=True)
dramatiq.set_broker(broker)
note = dramatiq.actor(job.note, actor_name="note")


def accept(given: job.Given) -> None:
    for _ in range(given.count):
        note.send_with_options(args=(job.TEXT, job.HEADERS), delay=round(given.delay * 1000))


def work(given: job.Given) -> None:
    dramatiq.Worker(broker, worker_threads=1).start()
    time.sleep(3600)


if __name__ == "__main__":
    job.main(accept, work)
