"""The rate at which delayed messages are accepted, beside plain kombu and RabbitMQ's own delays.

Single calls: ``Endpoint.send`` with a delay beside kombu's confirmed publish of the same message.
In bulk: ``Endpoint.send_many`` beside the same confirm window under kombu's Producer, and beside
kombu's native delayed delivery, where RabbitMQ holds messages; and ``Endpoint.store_many``, which
bypasses the queue.
"""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

from harness.bare import in_a_process
from harness.figures import Sample, Watch, interleave, ratio
from harness.messages import BODY, DAY, HEADERS, delayed, micros
from harness.report import Report, options, parsed
from harness.servers import servers
from harness.workers import Spec, configuration, installed
from kombu import Connection, Exchange, Producer, Queue
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from timeoutmgr import Endpoint, SendOptions, ToSend

WINDOW = 500


def main() -> None:
    given = parsed(options(__doc__), count=20_000, quick=2_000)
    with (
        servers("postgres", "rabbitmq") as running,
        installed(running["rabbitmq"], running["postgres"]) as spec,
    ):
        report = Report("Accepting", {"messages": given.count, **running.settings})
        few = given.count // 5
        singles = interleave(
            {
                "kombu, confirmed one by one": partial(in_a_process, kombu_singly, spec, few),
                "Endpoint.send": partial(in_a_process, send_singly, spec, few),
            },
            given.rounds,
        )
        bulk = interleave(
            {
                "kombu, windows of 500": partial(in_a_process, kombu_in_windows, spec, given.count),
                "Endpoint.send_many": partial(in_a_process, send_in_bulk, spec, given.count),
                "kombu native delay, windows of 500": partial(in_a_process, native, spec, few),
                "Endpoint.store_many": partial(in_a_process, store_in_bulk, spec, given.count),
            },
            given.rounds,
        )
    report.runs({**singles, **bulk})
    theirs, ours = singles.values()
    report.faster("Endpoint.send ÷ kombu, one by one", ours, theirs, 0.85)
    theirs, ours, broker, past = bulk.values()
    report.faster("send_many ÷ kombu in the same window", ours, theirs, 0.85)
    report.faster("send_many ÷ RabbitMQ native", ours, broker, 5)
    report.fact("store_many ÷ send_many", ratio(past, ours), " times")
    report.give(given)


def send_singly(spec: Spec, count: int) -> Sample:
    with closing(Endpoint(configuration(spec))) as endpoint:
        endpoint.send(spec.destination, "Warm", BODY, delay=86_400)
        watch = Watch()
        for _ in range(count):
            endpoint.send(spec.destination, "Benchmark", BODY, delay=86_400, headers=HEADERS)
        return watch.sample(count)


def orders(spec: Spec, count: int) -> Iterator[ToSend]:
    options = SendOptions(delay=86_400, headers=HEADERS)
    return (ToSend(spec.destination, "Benchmark", BODY, options) for _ in range(count))


def send_in_bulk(spec: Spec, count: int) -> Sample:
    with closing(Endpoint(configuration(spec))) as endpoint:
        endpoint.send_many(orders(spec, 1))
        watch = Watch()
        return watch.sample(endpoint.send_many(orders(spec, count)))


def store_in_bulk(spec: Spec, count: int) -> Sample:
    with closing(Endpoint(configuration(spec))) as endpoint:
        endpoint.store_many(orders(spec, 1))
        watch = Watch()
        return watch.sample(endpoint.store_many(orders(spec, count)))


def kombu_singly(spec: Spec, count: int) -> Sample:
    with Connection(spec.transport, transport_options={"confirm_publish": True}) as connection:
        producer = Producer(connection.channel(), auto_declare=False)
        example = delayed(spec.name, spec.destination, micros() + DAY)
        watch = Watch()
        for _ in range(count):
            publish(producer, example.destination, dict(example.message.headers))
        return watch.sample(count)


def kombu_in_windows(spec: Spec, count: int) -> Sample:
    with Connection(spec.transport) as connection:
        producer = Producer(connection.channel(), auto_declare=False)
        example = delayed(spec.name, spec.destination, micros() + DAY)
        headers = dict(example.message.headers)
        return windows(connection, producer, count, example.destination, headers)


def native(spec: Spec, count: int) -> Sample:
    with Connection(spec.transport) as connection:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "classic")
        queue = Queue("native", Exchange("native", type="topic"), routing_key="native")
        queue(connection.channel()).declare()
        bind_queue_to_native_delayed_delivery_exchange(connection, queue)
        key = calculate_routing_key(86_400, "native")
        first = Exchange(level_name(27), type="topic")
        producer = Producer(connection.channel(), exchange=first, auto_declare=False)
        return windows(connection, producer, count, key, HEADERS)


def windows(
    connection: Connection,
    producer: Producer,
    count: int,
    routing_key: str,
    headers: dict[str, str],
) -> Sample:
    """Publish with kombu's Producer, and wait for all confirms of a window at once."""
    channel: Any = producer.channel
    channel.confirm_select()
    confirmed = 0

    def on_ack(tag: int, multiple: bool) -> None:
        nonlocal confirmed
        confirmed = tag if multiple else confirmed + 1

    channel.events["basic_ack"].add(on_ack)
    watch = Watch()
    for number in range(1, count + 1):
        publish(producer, routing_key, headers)
        while number % WINDOW == 0 and confirmed < number:
            connection.drain_events(timeout=30)
    while confirmed < count:
        connection.drain_events(timeout=30)
    return watch.sample(count)


def publish(producer: Producer, key: str, headers: dict[str, str]) -> None:
    producer.publish(
        BODY,
        routing_key=key,
        headers=headers,
        content_type="application/octet-stream",
        content_encoding="binary",
        delivery_mode=2,
    )


if __name__ == "__main__":
    main()
