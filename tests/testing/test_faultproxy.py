"""Faults of the network on command: on a plain server, then on a database and a broker."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Self

import pytest

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import SendResult, Timeout, TimeoutFilter, TimeoutStore
from timeoutmgr.database import Database, DatabaseSettings
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable
from timeoutmgr.message import Message, Outgoing
from timeoutmgr.persistence import SqlPersistence
from timeoutmgr.testing.faultproxy import Direction, FaultProxy
from timeoutmgr.testing.signals import eventually
from timeoutmgr.transport.kombu_transport import KombuTransport


class Echo:
    """A server that answers each byte with itself, and notes how its connections ended."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received = bytearray()
        self.ends: list[str] = []
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with one:
                if one.fileno() != -1:
                    one.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            self._threads.append(threading.Thread(target=self._answer, args=(client,)))
            self._threads[-1].start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            try:
                while data := client.recv(65_536):
                    self.received += data
                    client.sendall(data)
                self.ends.append("closed")
            except OSError as error:
                self.ends.append(type(error).__name__)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        yield server


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", echo.port, seed=7) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        yield client


def ask(client: socket.socket, data: bytes = b"ping") -> bytes:
    client.sendall(data)
    return read(client, len(data))


def read(client: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count and (piece := client.recv(65_536)):
        got += piece
    return bytes(got)


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.15)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)
    return False


# --- a plain server ---------------------------------------------------------------------------


def test_without_faults_it_is_not_noticed(
    proxy: FaultProxy, client: socket.socket, echo: Echo
) -> None:
    body = bytes(range(256)) * 20_000  # more than its buffers hold
    sender = threading.Thread(target=client.sendall, args=(body,))
    sender.start()
    got = read(client, len(body))
    sender.join()

    assert got == body
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    eventually(lambda: echo.ends == ["closed"], "the server sees the end")
    assert (proxy.connections, proxy.fired) == (1, 0)


def test_it_slows_answers_and_keeps_their_order(proxy: FaultProxy, client: socket.socket) -> None:
    ask(client)
    proxy.slow(0.1, 0.05, Direction.ANSWERS)

    began = time.monotonic()
    answers = b"".join(ask(client, b"%d" % n) for n in range(3))
    took = time.monotonic() - began

    assert answers == b"012"
    assert took >= 0.15

    proxy.slow(60)
    proxy.heal()
    assert ask(client) == b"ping"


def test_what_is_delayed_arrives_at_once_when_it_is_healed(
    proxy: FaultProxy, client: socket.socket
) -> None:
    proxy.slow(60)
    client.sendall(b"ping")
    assert is_silent(client)

    proxy.heal()

    assert read(client, 4) == b"ping"


def test_it_throttles(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.throttle(20_000, Direction.REQUESTS)

    began = time.monotonic()
    assert ask(client, bytes(6_000)) == bytes(6_000)

    assert time.monotonic() - began >= 0.25


def test_a_sender_has_to_wait_when_nothing_gets_through(
    proxy: FaultProxy, client: socket.socket
) -> None:
    proxy.throttle(1)
    client.settimeout(0.3)

    with pytest.raises(TimeoutError):
        client.sendall(bytes(64_000_000))


@pytest.mark.parametrize("directions", [(), (Direction.REQUESTS,), (Direction.ANSWERS,)])
def test_a_blackhole_swallows_and_what_was_in_it_comes_out(
    proxy: FaultProxy, client: socket.socket, echo: Echo, directions: tuple[Direction, ...]
) -> None:
    ask(client)
    proxy.blackhole(*directions)

    client.sendall(b"more")
    silent = is_silent(client)
    arrived = bytes(echo.received)
    proxy.heal()

    assert silent
    assert arrived == (b"pingmore" if directions == (Direction.ANSWERS,) else b"ping")
    assert read(client, 4) == b"more"


def test_a_new_connection_into_a_blackhole_is_made_and_silent(proxy: FaultProxy) -> None:
    proxy.blackhole()

    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        client.sendall(b"ping")
        assert is_silent(client)
        proxy.heal()
        assert read(client, 4) == b"ping"


def test_a_reset_is_seen_at_both_ends(proxy: FaultProxy, client: socket.socket, echo: Echo) -> None:
    ask(client)

    proxy.reset()

    with pytest.raises(ConnectionResetError):
        client.recv(1)
    eventually(lambda: echo.ends == ["ConnectionResetError"], "the server sees it")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as again:
        assert ask(again) == b"ping"


def test_half_open_the_client_is_told_nothing(
    proxy: FaultProxy, client: socket.socket, echo: Echo
) -> None:
    ask(client)

    proxy.half_open()
    eventually(lambda: bool(echo.ends), "the server has lost it")
    client.sendall(b"is anybody there?")

    assert is_silent(client)
    assert bytes(echo.received) == b"ping"
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_half_open_the_server_is_told_nothing(
    proxy: FaultProxy, client: socket.socket, echo: Echo
) -> None:
    ask(client)

    proxy.half_open(Direction.ANSWERS)

    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert echo.ends == []


@pytest.mark.parametrize("count", [0, 1, 5, 4_000])
def test_exactly_so_many_bytes_arrive_before_the_cut(
    proxy: FaultProxy, client: socket.socket, echo: Echo, count: int
) -> None:
    ask(client, b"before")

    proxy.cut_after(count, Direction.REQUESTS)
    client.sendall(bytes(count + 1))
    proxy.wait_until_fired()

    eventually(lambda: bool(echo.ends), "the server sees the end")
    assert len(echo.received) == len(b"before") + count
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as again:
        assert ask(again, bytes(9_000)) == bytes(9_000)


def test_an_answer_is_cut_in_its_middle(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.cut_after(3, Direction.ANSWERS)

    client.sendall(b"answer")

    assert read(client, 6) == b"ans"


def test_refused_connections_are_refused_until_healed(
    proxy: FaultProxy, client: socket.socket
) -> None:
    proxy.refuse()
    proxy.refuse()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    assert ask(client) == b"ping"  # what is open stays
    proxy.heal()
    proxy.heal()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as again:
        assert ask(again) == b"ping"


def test_the_reply_of_the_second_matching_write_is_lost(
    proxy: FaultProxy, client: socket.socket, echo: Echo
) -> None:
    proxy.lose_reply(2, containing=b"COMMIT")

    assert ask(client, b"BEGIN") == b"BEGIN"
    assert ask(client, b"COMMIT") == b"COMMIT"
    assert ask(client, b"BEGIN") == b"BEGIN"
    client.sendall(b"COM")
    assert read(client, 3) == b"COM"
    client.sendall(b"MIT")  # told from its neighbours also in two pieces

    assert client.recv(1) == b""
    assert bytes(echo.received) == b"BEGINCOMMITBEGINCOMMIT"
    assert proxy.fired == 1


def test_a_lost_reply_without_a_cut_is_silence(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.lose_reply(then_cut=False)

    client.sendall(b"ping")
    proxy.wait_until_fired()

    client.sendall(b"pong")
    assert is_silent(client)
    proxy.reset()


def test_a_server_that_is_not_there_is_a_closed_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        FaultProxy("localhost", port) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client,
    ):
        assert client.recv(1) == b""


def test_a_seed_makes_the_jitter_repeatable() -> None:
    from random import Random

    from timeoutmgr.testing.fault_rules import Way

    way = Way(latency=0.1, jitter=0.05)
    one, other = (
        [way.delay(chance) for _ in range(9)] for chance in (Random("7 1"), Random("7 1"))
    )

    assert one == other
    assert min(one) >= 0.05
    assert max(one) <= 0.15
    assert len(set(one)) == 9


@pytest.mark.parametrize(
    "wrong",
    [
        lambda proxy: proxy.slow(-1),
        lambda proxy: proxy.slow(1, -1),
        lambda proxy: proxy.throttle(0),
        lambda proxy: proxy.cut_after(-1, Direction.REQUESTS),
        lambda proxy: proxy.lose_reply(0),
        lambda proxy: proxy.url("sqlite:///file.db"),
        lambda proxy: FaultProxy.before("sqlite:///file.db"),
        lambda proxy: FaultProxy.before("unknown://host/without-port"),
    ],
)
def test_what_makes_no_sense_is_refused(
    proxy: FaultProxy, wrong: Callable[[FaultProxy], None]
) -> None:
    with pytest.raises(ValueError, match=r"."):
        wrong(proxy)


def test_a_url_keeps_all_but_host_and_port(proxy: FaultProxy) -> None:
    there = f"127.0.0.1:{proxy.port}"

    assert proxy.url("amqp://u:p%40@broker:5672/v%2f?x=1") == f"amqp://u:p%40@{there}/v%2f?x=1"
    assert proxy.url("redis://[::1]/3") == f"redis://{there}/3"
    assert FaultProxy.before("postgresql+psycopg://h/db").target == ("h", 5432)
    assert f"seed={proxy.seed}" in repr(proxy)


def test_closing_twice_is_fine_and_frees_the_port(proxy: FaultProxy) -> None:
    proxy.close()
    proxy.close()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


# --- a database -------------------------------------------------------------------------------


@pytest.fixture(params=["postgres", "mysql"])
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def database_proxy(database_url: str) -> Iterator[FaultProxy]:
    with FaultProxy.before(database_url) as proxy:
        yield proxy


@pytest.fixture
def store(database_url: str, database_proxy: FaultProxy, unique: str) -> Iterator[TimeoutStore]:
    with closing(SqlPersistence(database_url, prefix=f"{unique}_")) as near:
        near.install()
    settings = DatabaseSettings(connect_timeout=1)
    database = Database(database_proxy.url(database_url), settings)
    with closing(SqlPersistence(database, prefix=f"{unique}_")) as far:
        yield far.timeouts("e", SystemClock())


def timeout(name: str) -> Timeout:
    return Timeout(id=name, due=2**50, destination="q", message=Message(id=name))


def stored(store: TimeoutStore) -> list[str]:
    return [one.id for one in store.list(TimeoutFilter())]


def test_a_commit_whose_result_is_unknown_is_told_and_storing_again_is_storing_once(
    store: TimeoutStore, database_proxy: FaultProxy
) -> None:
    store.store_many([timeout("before")])
    database_proxy.lose_reply(containing=b"COMMIT")

    with pytest.raises(StorageUnavailable):
        store.store_many([timeout("a"), timeout("b")])
    assert database_proxy.fired == 1

    assert stored(store) == ["a", "b", "before"]  # it was committed, and nobody was told
    store.store_many([timeout("a"), timeout("b")])
    assert stored(store) == ["a", "b", "before"]


def test_a_claim_whose_commit_is_unknown_loses_nothing(
    store: TimeoutStore, database_proxy: FaultProxy
) -> None:
    store.store_many([Timeout(id="a", due=5, destination="q", message=Message(id="m"))])
    database_proxy.lose_reply(containing=b"COMMIT")

    try:
        first = store.claim(SystemClock().now(), 9, "o").keys
    except StorageUnavailable:
        first = ()
    taken = store.key_of("a")
    assert taken is not None
    with store.take_many("", [taken]) as found:
        ids = [one.id for one in found.timeouts]

    assert [key.id for key in first] in ([], ["a"])
    assert ids == ["a"]


@pytest.mark.parametrize("count", [0, 7, 60, 130, 250, 400])
def test_a_request_that_is_cut_anywhere_stores_all_or_nothing(
    store: TimeoutStore, database_proxy: FaultProxy, count: int
) -> None:
    store.store_many([timeout("before")])
    database_proxy.cut_after(count, Direction.REQUESTS)

    def store_pairs() -> None:
        for number in range(20):  # enough to meet the cut, wherever the driver's packets end
            store.store_many([timeout(f"{number} a"), timeout(f"{number} b")])

    with pytest.raises(StorageUnavailable):
        store_pairs()

    left = [name for name in stored(store) if name != "before"]
    assert len(left) % 2 == 0
    assert {name[:-1] + "b" for name in left} == {name for name in left if name.endswith("b")}


def test_a_reset_is_an_outage_and_the_next_call_connects_again(
    store: TimeoutStore, database_proxy: FaultProxy
) -> None:
    store.ping()
    database_proxy.reset()

    with pytest.raises(StorageUnavailable):
        store.store_many([timeout("a")])
    store.store_many([timeout("b")])

    assert stored(store) == ["b"]


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_database_that_answers_no_new_connection_is_an_outage_in_time(
    store: TimeoutStore, database_proxy: FaultProxy
) -> None:
    """MySQL's driver is not in here: it waits a minute for the greeting, its read time-out."""
    database_proxy.blackhole()

    began = time.monotonic()
    with pytest.raises(StorageUnavailable):
        store.ping()
    took = time.monotonic() - began
    database_proxy.heal()

    assert took < 6  # PostgreSQL's library knows no less than two seconds
    store.ping()


def test_a_refused_connection_is_an_outage_at_once(
    store: TimeoutStore, database_proxy: FaultProxy
) -> None:
    database_proxy.refuse()
    with pytest.raises(StorageUnavailable):
        store.ping()

    database_proxy.heal()
    store.ping()


def test_a_slow_line_is_no_outage(store: TimeoutStore, database_proxy: FaultProxy) -> None:
    database_proxy.slow(0.02, 0.01)

    store.store_many([timeout("a")])

    assert stored(store) == ["a"]


# --- a broker ---------------------------------------------------------------------------------


@pytest.fixture
def broker_proxy(rabbitmq_url: str) -> Iterator[FaultProxy]:
    with FaultProxy.before(rabbitmq_url) as proxy:
        yield proxy


@pytest.fixture
def queue(rabbitmq_url: str, unique: str) -> Iterator[str]:
    with (
        closing(KombuTransport(rabbitmq_url, queue_type="classic")) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        yield unique
        session.delete_queues([unique])


@pytest.fixture
def far(rabbitmq_url: str, broker_proxy: FaultProxy) -> Iterator[KombuTransport]:
    second = timedelta(seconds=1)
    with closing(
        KombuTransport(
            broker_proxy.url(rabbitmq_url), confirm_timeout=second, connect_timeout=second
        )
    ) as transport:
        yield transport


def outgoing(queue: str, *names: str) -> list[Outgoing]:
    return [Outgoing(queue, Message(id=name, body=b"body of " + name.encode())) for name in names]


@pytest.mark.parametrize("then_cut", [True, False])
def test_a_lost_confirm_is_unknown_and_the_message_is_there(
    far: KombuTransport, broker_proxy: FaultProxy, queue: str, then_cut: bool
) -> None:
    with closing(far.session()) as session:
        assert session.send(outgoing(queue, "before")) == [SendResult.CONFIRMED]
        broker_proxy.lose_reply(containing=b"body of lost", then_cut=then_cut)

        began = time.monotonic()
        results = session.send(outgoing(queue, "lost"))
        took = time.monotonic() - began
        broker_proxy.wait_until_fired()

        assert results == [SendResult.UNKNOWN]
        assert took < 5
        assert session.send(outgoing(queue, "after")) == [SendResult.CONFIRMED]
        assert session.count(queue) == 3


def test_a_broker_that_falls_silent_leaves_sends_unknown_within_the_confirm_timeout(
    far: KombuTransport, broker_proxy: FaultProxy, queue: str
) -> None:
    with closing(far.session()) as session:
        assert session.send(outgoing(queue, "before")) == [SendResult.CONFIRMED]
        broker_proxy.blackhole()

        began = time.monotonic()
        results = session.send(outgoing(queue, "a", "b"))
        took = time.monotonic() - began
        broker_proxy.heal()

        assert results == [SendResult.UNKNOWN] * 2
        assert took < 5
        assert session.send(outgoing(queue, "c")) == [SendResult.CONFIRMED]


def test_a_broker_that_answers_no_new_connection_is_an_outage_in_time(
    far: KombuTransport, broker_proxy: FaultProxy
) -> None:
    broker_proxy.blackhole()
    with closing(far.session()) as session:
        began = time.monotonic()
        with pytest.raises(TransportUnavailable):
            session.ping()
        assert time.monotonic() - began < 6

        broker_proxy.heal()
        session.ping()


def test_a_reset_receiver_gets_everything_again(
    far: KombuTransport, broker_proxy: FaultProxy, queue: str
) -> None:
    with closing(far.session()) as session:
        session.send(outgoing(queue, "a", "b"))
        with closing(session.receiver(queue, prefetch=9)) as receiver:
            eventually(lambda: receiver.receive(1, 1), "the first message is received")
            broker_proxy.reset()

            def receive_all() -> None:
                while receiver.receive(9, 5):
                    continue

            with pytest.raises(TransportUnavailable):
                receive_all()
            got: dict[str, int] = {}

            def both() -> bool:
                got.update((one.message.id, one.delivery_count) for one in receiver.receive(9, 1))
                return len(got) == 2

            eventually(both, "both messages come again")
    assert got == {"a": 1, "b": 1}


def test_a_refused_broker_is_an_outage_and_then_is_none(
    far: KombuTransport, broker_proxy: FaultProxy
) -> None:
    broker_proxy.refuse()
    with closing(far.session()) as session:
        with pytest.raises(TransportUnavailable):
            session.ping()
        broker_proxy.heal()
        session.ping()
