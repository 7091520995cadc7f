"""Running endpoints on real queues, and a stranger's way into the queues."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.acceptance.matrix import EMBEDDED, REFERENCE, Pair
from tests.acceptance.place import Party, Place, stopping
from tests.fuzz.account import Account
from tests.fuzz.corpus import CASES
from tests.fuzz.ways import Insert, Way, amqp_way
from timeoutmgr.database import Database
from timeoutmgr.message.routes import DISPATCHER, TIMEOUTS

PAIRS = (REFERENCE, EMBEDDED)


class Fuzzed:
    """A running endpoint, the way into its queues, and the account of its messages."""

    def __init__(self, party: Party, way: Way) -> None:
        self.sink = f"{party.name}.sink"
        self.bystander = f"{party.name}.bystander"
        self.party = party
        self.way = way
        self.manner = way.manner(self.bystander)
        self.account = Account(party, self.sink, self.bystander)


@contextmanager
def fuzzing(request: pytest.FixtureRequest, pair: Pair, folder: Path) -> Iterator[Fuzzed]:
    """Run an endpoint on *pair*."""
    urls = {"sqlite": f"sqlite:///{folder / 'timeoutmgr.db'}"}
    urls |= {server: request.getfixturevalue(f"{server}_url") for server in sorted(pair.servers)}
    name = f"t{secrets.token_hex(4)}"
    with stopping(Place(pair, urls, name)) as place, ExitStack() as stack:
        party = Party(place).start()
        way: Way
        if pair.transport == "rabbitmq":
            way = stack.enter_context(amqp_way(urls["rabbitmq"]))
        else:
            way = Insert(Database.shared(urls["sqlite"]))
        yield Fuzzed(party, way)


@pytest.fixture(params=PAIRS, ids=lambda pair: pair.id)
def fuzzed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fuzzed]:
    """An endpoint on each pair."""
    with fuzzing(request, request.param, tmp_path) as made:
        yield made


@pytest.fixture
def embedded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fuzzed]:
    """An endpoint on the embedded queue."""
    with fuzzing(request, EMBEDDED, tmp_path) as made:
        yield made


@pytest.fixture
def brokered(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fuzzed]:
    """An endpoint on RabbitMQ and PostgreSQL."""
    with fuzzing(request, REFERENCE, tmp_path) as made:
        yield made


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: pair.id)
def after_the_corpus(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Fuzzed]]:
    """The transport's name, and an endpoint that has read the whole corpus."""
    pair: Pair = request.param
    with fuzzing(request, pair, tmp_path_factory.mktemp("corpus")) as made:
        for queue in (TIMEOUTS, DISPATCHER):
            cases = [case for case in CASES if case.queue == queue]
            here = [case.raw for case in cases if pair.transport in case.transports]
            made.way.put(made.party.name + queue, here)
        made.account.settle()
        yield pair.transport, made
