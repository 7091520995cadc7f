"""A plain server and its client feel each fault of the proxy as a fault of the network."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.waiting import eventually
from tests.testing.echoing import Echo, ask, is_silent, read
from timeoutmgr.testing.faultproxy import Direction, FaultProxy


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


def test_a_proxy_without_faults_changes_nothing(
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


def test_latency_slows_answers_and_keeps_their_order(
    proxy: FaultProxy, client: socket.socket
) -> None:
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


def test_delayed_bytes_arrive_at_once_when_the_proxy_heals(
    proxy: FaultProxy, client: socket.socket
) -> None:
    proxy.slow(60)
    client.sendall(b"ping")
    assert is_silent(client)

    proxy.heal()

    assert read(client, 4) == b"ping"


def test_a_throttled_proxy_delays_a_large_request(proxy: FaultProxy, client: socket.socket) -> None:
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
def test_a_blackhole_swallows_bytes_and_returns_them_when_it_ends(
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


def test_a_half_open_line_hides_the_end_of_the_server_from_the_client(
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


def test_a_half_open_line_hides_the_end_of_the_client_from_the_server(
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
    assert ask(client) == b"ping"  # open connections stay
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
    client.sendall(b"MIT")  # recognised among its neighbours also in two pieces

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
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
    with (
        FaultProxy("localhost", port) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client,
    ):
        assert client.recv(1) == b""


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda proxy: proxy.slow(-1), "must not be negative, got -1 and 0"),
        (lambda proxy: proxy.slow(1, -1), "must not be negative, got 1 and -1"),
        (lambda proxy: proxy.throttle(0), "must be positive, got 0"),
        (lambda proxy: proxy.cut_after(-1, Direction.REQUESTS), "must not be negative, got -1"),
        (lambda proxy: proxy.lose_reply(0), "at least 1, got 0"),
        (lambda proxy: proxy.url("sqlite:///file.db"), "names no host"),
        (lambda proxy: FaultProxy.before("sqlite:///file.db"), "got the scheme 'sqlite'"),
        (lambda proxy: FaultProxy.before("unknown://host/no-port"), "got the scheme 'unknown'"),
    ],
)
def test_a_senseless_fault_is_refused(
    proxy: FaultProxy, wrong: Callable[[FaultProxy], None], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
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
