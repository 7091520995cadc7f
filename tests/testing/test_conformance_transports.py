"""Our own transports pass the suite that we ship."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import ClassVar

import pytest
from sqlalchemy import text

from timeoutmgr.contracts import SendResult, Transport, TransportSession
from timeoutmgr.database import Database
from timeoutmgr.message.foreign import AMQP
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.testing.conformance.transports import TransportConformance
from timeoutmgr.testing.faultproxy import FaultProxy
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.settings import KombuSettings
from timeoutmgr.transport.sql import SqlTransport

PREFIX = "conformance_"


class TestMemory(TransportConformance):
    durable, transactions = False, False
    sends_foreign = True

    @pytest.fixture
    def make_transport(self) -> Callable[[], Transport]:
        return lambda: KombuTransport("memory://", accept_loss=True)


class ThroughProxy(TransportConformance):
    """Brokers are reached through a proxy, so that their connections can be cut."""

    transactions = False
    sends_foreign = True
    can_lose_leases = True
    broker: ClassVar[str]
    settings: ClassVar[KombuSettings]

    @pytest.fixture
    def broker_url(self, request: pytest.FixtureRequest) -> str:
        url: str = request.getfixturevalue(f"{self.broker}_url")
        return url

    @pytest.fixture
    def proxy(self, broker_url: str) -> Iterator[FaultProxy]:
        with FaultProxy.before(broker_url) as proxy:
            yield proxy

    @pytest.fixture
    def make_transport(self, broker_url: str, proxy: FaultProxy) -> Callable[[], Transport]:
        return lambda: KombuTransport(proxy.url(broker_url), settings=self.settings)

    @pytest.fixture
    def lose_leases(self, proxy: FaultProxy) -> Callable[[], None]:
        return proxy.reset


class TestRabbitMQ(ThroughProxy):
    durable = True
    broker = "rabbitmq"
    foreign_codec = AMQP
    settings = KombuSettings(queue_type="classic")


class TestRedis(ThroughProxy):
    durable = False
    broker = "redis"
    settings = KombuSettings(accept_loss=True, confirm_timeout=timedelta(seconds=5))


@pytest.fixture(scope="session")
def installed_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    """Tables of a kind of database, installed once; every test has its own queues in them."""
    urls: dict[str, str] = {}
    made: list[SqlTransport] = []

    def of(kind: str) -> str:
        if kind not in urls:
            urls[kind] = (
                f"sqlite:///{tmp_path_factory.mktemp('conformance') / 'queues.db'}"
                if kind == "sqlite"
                else request.getfixturevalue(f"{kind}_url")
            )
            made.append(SqlTransport(urls[kind], prefix=PREFIX))
            made[-1].install()
        return urls[kind]

    yield of

    for transport in made:
        transport.close()


class InSql(TransportConformance):
    durable, transactions = True, True
    sends_foreign = True
    expires_messages = True
    can_lose_leases = True
    kind: ClassVar[str]

    @pytest.fixture
    def url(self, installed_url: Callable[[str], str]) -> str:
        return installed_url(self.kind)

    @pytest.fixture
    def make_transport(self, url: str) -> Callable[[], Transport]:
        return lambda: SqlTransport(url, prefix=PREFIX)

    @pytest.fixture
    def lose_leases(self, url: str) -> Callable[[], None]:
        def lapse() -> None:
            with Database.shared(url).begin() as connection:
                connection.execute(text(f"UPDATE {PREFIX}queue_messages SET lease_until = 1"))

        return lapse


class TestSqlite(InSql):
    kind = "sqlite"


class TestPostgres(InSql):
    kind = "postgres"


class TestMysql(InSql):
    kind = "mysql"


class TestSplit(InSql):
    """Queues in a file, and foreign messages at a broker."""

    kind = "sqlite"
    transactions = False
    foreign_codec = AMQP

    @pytest.fixture
    def make_transport(self, url: str, rabbitmq_url: str) -> Callable[[], Transport]:
        return lambda: SqlTransport(url, prefix=PREFIX, destinations=rabbitmq_url)

    @pytest.fixture
    def foreign_session(self, rabbitmq_url: str) -> Iterator[TransportSession]:
        with (
            closing(KombuTransport(rabbitmq_url)) as transport,
            closing(transport.session()) as session,
        ):
            yield session

    def test_a_transport_without_transactions_refuses_a_transaction(
        self, session: TransportSession, queue: str
    ) -> None:
        """No mode spans both sides; the queues of the file have transactions of their own."""
        one = Outgoing(queue, Message(id="m1", body=b"{}"))

        with session.transaction() as transaction:
            assert session.send([one], transaction=transaction) == [SendResult.CONFIRMED]

        assert session.count(queue) == 1
