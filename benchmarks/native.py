"""Delays inside RabbitMQ: rate of acceptance, lateness, and effects of unroutable messages."""

import logging
import random
import time
import uuid
from collections.abc import Callable
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from harness.bare import broker, in_a_process
from harness.destination import Destination
from harness.figures import Sample, Watch, interleave, say
from harness.messages import BODY, HEADERS, SECOND, create_queues, fill, micros, transport_of
from harness.report import Report, options, parsed
from harness.servers import servers
from kombu import Connection, Producer
from kombu.transport.native_delayed_delivery import (
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.clock import SystemClock
from timeoutmgr.deadletter import (
    DeadLetterQueues,
    DeadLetterStore,
    MessageClass,
    NodeQueue,
    StoredCopyQueue,
)
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.native import NativeDelayedDelivery
from timeoutmgr.native.infrastructure import DelayLevels
from timeoutmgr.native.names import CELERY, OURS, NameSet, to_levels

QUEUE = "native.destination"
WINDOW = 500
CLOCK = SystemClock()
LEAD = 3 * SECOND
PER_SECOND = 400
SLICE = 40


def main() -> None:
    given = parsed(options(__doc__), count=10_000, quick=1_000)
    logging.getLogger("timeoutmgr").setLevel(logging.CRITICAL)  # each dead letter is a line
    with servers("rabbitmq", "sqlite") as running:
        url = running["rabbitmq"]
        report = Report("Native delays", {"messages": given.count, **running.settings})
        for names in (OURS, CELERY):
            install(url, names)
        accepted(report, url, given.count, given.rounds)
        late(report, url, given.count // 10, 2 if given.quick else 20)
        good, bad = given.count // 10, given.count
        ours = among_the_unroutable(url, running["sqlite"], good, bad)
        among = f"latest of {good:,} among {bad:,} unroutable, {PER_SECOND} a second"
        report.bar(among, ours, 2, at_most=True, unit=" s")
        if not given.quick:  # it is a wait
            stopped = among_them_in_kombus(url, good, bad)
            report.fact(f"of {good:,} in kombu's levels, arrived 10 s late", stopped)
    report.give(given)


def install(url: str, names: NameSet) -> None:
    create_queues(url, QUEUE)
    with closing(transport_of(url)) as transport:
        DelayLevels(transport=transport, names=names, queue_type="quorum", bound=[QUEUE]).install()


def native(destination: str, due: int, names: NameSet = OURS) -> Outgoing:
    message = Message(id=str(uuid.uuid4()), headers=HEADERS, body=BODY)
    return to_levels(Outgoing(destination, message), due, names, CLOCK)


# --- accepting --------------------------------------------------------------------------------


def accepted(report: Report, url: str, count: int, rounds: int) -> None:
    """Compare our sender's windows with kombu's helper, both with confirms."""
    samples = interleave(
        {
            "kombu's helper, confirm_publish=True": partial(
                in_a_process, kombus_helper, url, count // 5
            ),
            f"levels, window of {WINDOW}": partial(in_a_process, our_windows, url, count),
        },
        rounds,
    )
    report.runs(samples)
    kombus, ours = samples.values()
    report.faster("accepted ÷ kombu's helper", ours, kombus, 3)


def kombus_helper(url: str, count: int) -> Sample:
    options = {"confirm_publish": True}
    with Connection(url, transport_options=options) as connection, emptied(url, CELERY):
        producer = Producer(connection.channel(), auto_declare=False)
        watch = Watch()
        for number in range(count):
            producer.publish(
                BODY,
                exchange=level_name(21),
                routing_key=calculate_routing_key(2**21 + number, QUEUE),
                headers=HEADERS,
                content_type="application/octet-stream",
                content_encoding="binary",
                delivery_mode=2,
                message_id=str(number),
            )
        return watch.sample(count)


def our_windows(url: str, count: int) -> Sample:
    with closing(transport_of(url).session()) as session, emptied(url, OURS):
        watch = Watch()
        for start in range(0, count, WINDOW):
            due = micros() + 2**21 * SECOND
            numbers = range(start, min(start + WINDOW, count))
            session.send([native(QUEUE, due + n * SECOND) for n in numbers])
        return watch.sample(count)


@contextmanager
def emptied(url: str, names: NameSet) -> Any:
    """Empty the level of the far future at the end."""
    yield
    with broker(url) as connection:
        connection.channel().queue_purge(names.level_name(21))


# --- lateness ---------------------------------------------------------------------------------


def late(report: Report, url: str, count: int, seconds: int) -> None:
    """Send *count* messages due at random instants within *seconds*; report their lateness."""
    for names, p50, p99 in ((OURS, 300, 600), (CELERY, 650, 1200)):
        with Destination(url, QUEUE, count) as destination:
            first = micros() + LEAD
            dues = [first + random.randrange(seconds * SECOND) for _ in range(count)]
            fill(url, [native(QUEUE, due, names) for due in dues])
            lateness = destination.arrivals().lateness()
        parts = "our levels" if names is OURS else "kombu's, in whole seconds"
        report.bar(f"p50, {parts}", lateness[count // 2], p50, at_most=True, unit=" ms")
        report.bar(f"p99, {parts}", lateness[count * 99 // 100], p99, at_most=True, unit=" ms")
        report.bar(f"earliest, {parts}", lateness[0], 0, unit=" ms")
        say(f"{names.name}: p50 {lateness[count // 2]:.0f} ms, max {lateness[-1]:.0f} ms")


# --- messages without a queue -----------------------------------------------------------------


def among_the_unroutable(url: str, store: str, good: int, bad: int) -> float:
    """Return the highest lateness of a good message; all bad messages must be dead letters."""
    letters = DeadLetterStore(store)
    config = EndpointConfiguration("native.sales")
    config.use_transport(url)
    config.enable_feature(NativeDelayedDelivery())
    config.enable_feature(DeadLetterQueues(node="bench", store=letters))
    config.disable_timeout_manager(force=True)
    config.add_handler("*", lambda _body, _context: None)
    with Endpoint(config) as endpoint, Destination(url, QUEUE, good) as destination:
        send_mixed(url, good, bad, partial(marked, endpoint))
        lateness = destination.arrivals().lateness()
        dead = StoredCopyQueue(QueueManager(store=letters, node="bench"), NodeQueue.DEADLETTER)
        until(lambda: dead.count() >= bad, 600)
        classes = {dead_letter.message_class for dead_letter in dead.peek(limit=bad)}
        assert classes == {MessageClass.NACK_BAD_DST_Q}, classes
    letters.close()
    return lateness[-1] / 1000


def marked(endpoint: Endpoint, outgoing: Outgoing) -> Outgoing:
    """Return *outgoing* as the endpoint would send it, with a request for a dead letter."""
    parts = endpoint._parts
    assert parts.features.dead_letters is not None
    marks = parts.features.dead_letters.delivery_headers(
        None, outgoing.message.headers, outgoing.destination
    )
    message = outgoing.message
    headers = {**message.headers, **marks}
    made = Message(id=message.id, headers=headers, body=message.body)
    return Outgoing(outgoing.destination, made, outgoing.via)


def among_them_in_kombus(url: str, good: int, bad: int) -> int:
    """Return how many good messages kombu's levels delivered 10 s after the due time."""
    with Connection(url) as connection:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
    send_mixed(url, good, bad, lambda outgoing: outgoing, CELERY)
    time.sleep((2 * LEAD + 10 * SECOND) / SECOND)
    with closing(transport_of(url).session()) as session:
        return session.count(QUEUE)


def send_mixed(
    url: str, good: int, bad: int, made: Callable[[Outgoing], Outgoing], names: NameSet = OURS
) -> None:
    """Send good and bad messages mixed, at a steady rate, each due some seconds later."""
    queues = [QUEUE] * good + [f"nobody.{number}" for number in range(bad)]
    random.shuffle(queues)
    began = time.monotonic()
    with closing(transport_of(url).session()) as session:
        for start in range(0, len(queues), SLICE):
            due = micros() + LEAD
            session.send(
                [
                    made(native(queue, due + random.randrange(LEAD), names))
                    for queue in queues[start : start + SLICE]
                ]
            )
            time.sleep(max(0.0, began + (start + SLICE) / PER_SECOND - time.monotonic()))


def until(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
