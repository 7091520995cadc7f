"""Gain of waiting for confirms once per window, beside kombu's wait for each message."""

from contextlib import closing
from functools import partial

from harness.bare import in_a_process
from harness.figures import Sample, Watch, interleave
from harness.messages import BODY, HEADERS, create_queues, delete_queues, transport_of
from harness.report import Report, options, parsed
from harness.servers import servers
from kombu import Connection, Producer

from timeoutmgr.message.message import Message, Outgoing

QUEUE = "confirms"


def main() -> None:
    given = parsed(options(__doc__), count=20_000, quick=3_000)
    with servers("rabbitmq") as running:
        url = running["rabbitmq"]
        report = Report("Confirm windows", {"messages": given.count, **running.settings})
        few = given.count // 5  # without windows, a fifth takes as long as all with windows
        samples = interleave(
            {
                "kombu, confirm_publish=True": partial(in_a_process, one_by_one, url, few),
                "window of 50": partial(in_a_process, windows, url, given.count, 50),
                "window of 500": partial(in_a_process, windows, url, given.count, 500),
            },
            given.rounds,
        )
    report.runs(samples)
    kombus, fifty, five_hundred = samples.values()
    report.faster("window of 50 ÷ kombu's confirm of each", fifty, kombus, 4)
    report.faster("window of 500 ÷ kombu's confirm of each", five_hundred, kombus, 6)
    report.give(given)


def one_by_one(url: str, count: int) -> Sample:
    create_queues(url, QUEUE)
    with Connection(url, transport_options={"confirm_publish": True}) as connection:
        producer = Producer(connection.channel(), auto_declare=False)
        watch = Watch()
        for number in range(count):
            producer.publish(
                BODY,
                routing_key=QUEUE,
                headers=HEADERS,
                content_type="application/octet-stream",
                content_encoding="binary",
                delivery_mode=2,
                mandatory=True,
                message_id=str(number),
            )
        sample = watch.sample(count)
    delete_queues(url, QUEUE)
    return sample


def windows(url: str, count: int, window: int) -> Sample:
    create_queues(url, QUEUE)
    with closing(transport_of(url).session()) as session:
        watch = Watch()
        for start in range(0, count, window):
            numbers = range(start, min(start + window, count))
            session.send(
                [Outgoing(QUEUE, Message(id=str(n), headers=HEADERS, body=BODY)) for n in numbers]
            )
        sample = watch.sample(count)
    delete_queues(url, QUEUE)
    return sample


if __name__ == "__main__":
    main()
