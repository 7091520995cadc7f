"""An app of Celery whose delays are durable, on each kind of broker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu as kombu_package
import pytest
from celery import Celery

from tests.support.redis_keys import forget_keys
from tests.support.waiting import eventually
from timeoutmgr import Endpoint
from timeoutmgr.contrib.celery import DurableDelays
from timeoutmgr.transport.sql import register

kombu: Any = kombu_package  # its annotations are too few to check against
register()

BROKERS = ("rabbitmq", "redis", "postgres", "sqlite")


def add(x: int, y: int) -> int:
    """Return the sum."""
    return x + y


def flaky(self: Any) -> None:
    """Do nothing; a test retries it."""


def as_kombu(channel: Any, message: Any) -> Any:
    """Return *message* as a consumer of kombu's sees it; py-amqp returns its own kind."""
    return message if hasattr(message, "payload") else channel.message_to_python(message)


class Site:
    """An app with one queue, its delays, and the endpoint that dispatches them once started."""

    def __init__(self, broker: str, store: str, name: str, **options: Any) -> None:
        self.broker, self.store = broker, store
        self.queue = f"{name}-tasks"
        self.app: Any = Celery(name, broker=broker, backend="cache+memory://", set_as_current=False)
        self.app.conf.task_default_queue = self.queue
        self.app.conf.task_default_exchange = self.queue
        self.delays = DurableDelays(self.app, store=store, name=name, in_worker=False, **options)
        self.closing = contextlib.ExitStack()
        self.add: Any = self.app.task(add, name="add")

    def connection(self) -> Any:
        """Return a connection to the broker, as a worker of the app has it."""
        options = dict(self.app.conf.broker_transport_options)
        return kombu.Connection(self.broker, transport_options=options)

    def dispatching(self) -> Endpoint:
        """Start the satellites; they run until the test ends."""
        return self.closing.enter_context(Endpoint(self.delays.configuration()))

    def arrival(self) -> Any:
        """Return the next message of the app's queue, once it is there."""
        found: list[Any] = []

        def arrives() -> bool:
            with self.connection() as connection:
                channel = connection.channel()
                with contextlib.suppress(*connection.channel_errors):
                    message = channel.basic_get(self.queue, no_ack=True)
                    if message is not None:
                        found.append(as_kombu(channel, message))
            return bool(found)

        eventually(arrives, f"a task is in queue {self.queue}")
        return found[0]

    def waiting(self) -> int:
        """Return the number of messages in the app's queue."""
        with self.connection() as connection:
            try:
                queue = kombu.Queue(self.queue)(connection.channel())
                return int(queue.queue_declare(passive=True).message_count)
            except connection.channel_errors:
                return 0

    def stored(self) -> list[str]:
        """Return the ids of the stored tasks, by their eta."""
        return [task.id for task in self.delays.list()]

    def close(self) -> None:
        """Stop the satellites, and delete the queue."""
        self.closing.close()
        self.delays.endpoint.close()
        with self.connection() as connection:
            channel = connection.channel()
            with contextlib.suppress(*connection.channel_errors):
                channel.queue_delete(self.queue)
        self.app.close()
        if self.broker.startswith("redis"):
            forget_keys(self.broker, self.queue.removesuffix("-tasks"))


MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(
    request: pytest.FixtureRequest, tmp_path: Path, unique: str
) -> Iterator[Callable[..., Site]]:
    """Make an app on a kind of broker, or on the file of a URL; it is closed when the test ends."""
    made: list[Site] = []

    def make(kind: str, **options: Any) -> Site:
        file = f"sqlite:///{tmp_path / 'store.db'}" if ":" not in kind else kind
        is_file = kind == "sqlite" or ":" in kind
        url = file if is_file else str(request.getfixturevalue(f"{kind}_url"))
        store = url if kind == "postgres" else file
        broker = f"timeoutmgr+{url}" if is_file or kind == "postgres" else url
        made.append(Site(broker, store, unique, **options))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture(params=BROKERS)
def site(request: pytest.FixtureRequest, make_site: MakeSite) -> Site:
    """An app on each kind of broker."""
    return make_site(request.param)


@pytest.fixture
def embedded(make_site: MakeSite) -> Site:
    """An app whose broker and store are one SQLite file."""
    return make_site("sqlite")
