"""A delayed task that a program without the delays published is moved into the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from types import MappingProxyType, SimpleNamespace
from typing import Any

import kombu as kombu_package
import pytest
from celery import Celery

from tests.contrib.celery.conftest import Site, add
from tests.contrib.celery.test_delays import seen
from tests.support.waiting import eventually
from timeoutmgr import Endpoint
from timeoutmgr.contracts import ChangeResult
from timeoutmgr.contrib.celery.takeover import Takeover
from timeoutmgr.errors import InvalidMessage, StorageUnavailable

kombu: Any = kombu_package  # its annotations are too few to check against
HOUR = 3600


@pytest.fixture
def stock(site: Site) -> Iterator[Any]:
    """The task of a program that lacks the delays, on the broker of the site."""
    app: Any = Celery(site.app.main, broker=site.broker, set_as_current=False)
    app.conf.update(task_default_queue=site.queue, task_default_exchange=site.queue)
    yield app.task(add, name="add")
    app.close()


@contextmanager
def received(site: Site) -> Iterator[Any]:
    """Receive a task; at the end it is in the queue again, as after the death of a worker."""
    queue = site.app.amqp.queues[site.queue]
    with kombu.Connection(site.broker) as connection:
        found: list[Any] = []
        consumer = kombu.Consumer(
            connection, [queue], on_message=found.append, accept=["json"], prefetch_count=1
        )
        with consumer:
            eventually(lambda: _drained(connection, found), f"a task is in queue {site.queue}")
        yield found[0]
        if not found[0].acknowledged:
            found[0].requeue()


def _drained(connection: Any, found: list[Any]) -> bool:
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.1)
    return bool(found)


def move_in(site: Site) -> bool:
    with received(site) as message:
        payload = None if "task" in message.headers else message.decode()
        return site.delays.move_in(message, payload, site.app.amqp.queues[site.queue])


def test_a_moved_task_arrives_as_its_program_sent_it(site: Site, stock: Any) -> None:
    about = {"headers": {"tenant": "a", "x-own": 1}, "priority": 3, "compression": "zlib"}
    sent = stock.apply_async((1, 2), countdown=HOUR, **about)

    assert move_in(site)
    site.arrival()  # it was not acknowledged
    assert [(task.id, task.name, task.args) for task in site.delays.list()] == [
        (sent.id, "add", "(1, 2)")
    ]

    site.dispatching()
    assert site.delays.send_now(sent.id) is ChangeResult.CHANGED
    ours = seen(site.arrival())
    stock.apply_async((1, 2), **about)
    theirs = seen(site.arrival())
    theirs["headers"].pop("compression", None)
    assert ours["headers"] == theirs["headers"]
    assert ours["properties"] == theirs["properties"]


def test_a_task_of_protocol_one_is_moved_as_well(site: Site, stock: Any) -> None:
    stock.app.conf.task_protocol = 1
    sent = stock.apply_async((1, 2), countdown=HOUR)
    assert move_in(site)
    site.arrival()  # it was not acknowledged
    assert [(task.id, task.name) for task in site.delays.list()] == [(sent.id, "add")]

    site.dispatching()
    assert site.delays.send_now(sent.id) is ChangeResult.CHANGED

    assert site.arrival().payload["id"] == sent.id


def test_a_task_that_is_delivered_again_after_it_was_stored_is_stored_once(
    site: Site, stock: Any
) -> None:
    sent = stock.apply_async((1, 2), countdown=HOUR)
    for _ in range(2):
        assert move_in(site)

    assert site.stored() == [sent.id]


def test_a_used_id_with_other_arguments_is_another_task(site: Site, stock: Any) -> None:
    eta = datetime.now(UTC) + timedelta(hours=1)
    for argument in (1, 2):
        stock.apply_async((argument, 0), eta=eta, task_id="sum")
        assert move_in(site)
        site.arrival()

    assert [task.args for task in site.delays.list()] in (
        ["(1, 0)", "(2, 0)"],
        ["(2, 0)", "(1, 0)"],
    )


def test_a_revoked_task_that_is_delivered_again_stays_revoked(site: Site, stock: Any) -> None:
    sent = stock.apply_async((1, 2), countdown=HOUR)
    assert move_in(site)
    site.app.control.revoke(sent.id)

    assert move_in(site)  # delivered again, as its acknowledgement was lost
    assert site.stored() == []


def test_a_task_that_was_dispatched_is_left_to_celery(site: Site, stock: Any) -> None:
    sent = stock.apply_async((1, 2), countdown=HOUR)
    assert move_in(site)
    with Endpoint(site.delays.configuration()):
        site.delays.send_now(sent.id)
        eventually(lambda: site.stored() == [], "the task is dispatched")

    assert not move_in(site)  # the first message still waits for its eta


@pytest.mark.parametrize("countdown", [None, 0.5, -5])
def test_a_task_that_is_due_is_left_to_celery(
    site: Site, stock: Any, countdown: float | None
) -> None:
    stock.apply_async((1, 2), countdown=countdown)

    assert not move_in(site)


class Delays:
    """Delays whose store answers what a test says."""

    def __init__(self, answer: Callable[[], bool]) -> None:
        self.answer = answer
        self.asked = 0

    def move_in(self, *_: Any) -> bool:
        self.asked += 1
        return self.answer()


def parked(
    delays: Delays,
    times: list[float],
    revoked: tuple[str, ...] = (),
    stamps: Mapping[str, Any] = MappingProxyType({}),
    borne: object = MappingProxyType({"customer": ["c1"]}),
) -> list[str]:
    """Receive a task at each of *times*; return what became of them."""
    queue = SimpleNamespace(name="q", routing_key="q", exchange=SimpleNamespace(name=""))
    consumer = SimpleNamespace(
        app=SimpleNamespace(timeoutmgr_delays=delays),
        controller=SimpleNamespace(state=SimpleNamespace(revoked=revoked, revoked_stamps=stamps)),
        task_consumer=SimpleNamespace(queues=[queue]),
        connection_errors=(),
    )
    clock = iter(range(100))
    takeover = Takeover(consumer, lambda: next(clock) * 0.1)
    done: list[str] = []
    receive = takeover.before(lambda *_: done.append("parked"))
    message = SimpleNamespace(
        headers={
            "id": "t",
            "eta": "2099-01-01T00:00:00+00:00",
            "stamps": borne,
        },
        delivery_info={"routing_key": "q"},
    )
    for _ in times:
        receive(message, None, lambda *_: done.append("acknowledged"), None, ())
    return done


def failing(error: Exception) -> Callable[[], bool]:
    def fail() -> bool:
        raise error

    return fail


def test_a_task_is_acknowledged_only_if_the_store_has_it() -> None:
    assert parked(Delays(lambda: True), [0.0]) == ["acknowledged"]
    assert parked(Delays(lambda: False), [0.0]) == ["parked"]


def test_a_task_is_parked_if_the_store_fails_and_the_store_rests() -> None:
    delays = Delays(failing(StorageUnavailable("away")))

    assert parked(delays, [0.0, 1.0, 2.0]) == ["parked"] * 3
    assert delays.asked == 1


def test_a_task_that_cannot_be_stored_keeps_no_other_task_from_the_store() -> None:
    delays = Delays(failing(InvalidMessage("too big")))

    assert parked(delays, [0.0, 1.0]) == ["parked"] * 2
    assert delays.asked == 2


def test_a_task_whose_stamps_are_no_table_is_left_to_celery_and_ends_no_worker() -> None:
    delays = Delays(lambda: True)

    assert parked(delays, [0.0], borne=["c1"]) == ["parked"]


def test_a_task_that_a_worker_knows_as_revoked_is_left_to_celery() -> None:
    delays = Delays(lambda: True)

    assert parked(delays, [0.0], revoked=("t",)) == ["parked"]
    assert parked(delays, [0.0], stamps={"customer": ["c0", "c1"]}) == ["parked"]
    assert delays.asked == 0
    assert parked(delays, [0.0], stamps={"customer": "c2", "c1": "c1"}) == ["acknowledged"]


def test_each_copy_of_a_broadcast_is_moved_and_a_copy_that_comes_again_is_not(
    site: Site, stock: Any
) -> None:
    stock.apply_async((1, 2), countdown=HOUR)
    queues = [kombu.Queue(f"{site.queue}-{number}") for number in (1, 2, 1)]

    with received(site) as message:
        assert [site.delays.move_in(message, None, queue) for queue in queues] == [True] * 3

    moved = sorted(task.queue for task in site.delays.list())
    assert moved == [queue.name for queue in queues[:2]]
