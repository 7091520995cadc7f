"""AMQP over TLS: whole messages in both directions, and no broker that cannot prove its name."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.transport.proxy import Proxy
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import (
    CombinationRefused,
    ConfigurationError,
    TransportUnavailable,
    UnknownSetting,
)
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.testing.conformance.transports.suite import with_properties
from timeoutmgr.transport.kombu_transport import KombuTransport


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate, signed by itself, of a broker called ``localhost``."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, signed, both = (folder / f"{name}.pem" for name in ("key", "signed", "both"))
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", signed),
        ],
        check=True,
        capture_output=True,
    )
    both.write_text(key.read_text() + signed.read_text())
    return both


@pytest.fixture
def tls_proxy(rabbitmq_url: str, certificate: Path) -> Iterator[Proxy]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    parts = urlsplit(rabbitmq_url)
    with Proxy((parts.hostname or "127.0.0.1", parts.port or 5672), context) as proxy:
        yield proxy


@pytest.fixture
def tls_url(rabbitmq_url: str, tls_proxy: Proxy) -> str:
    parts = urlsplit(rabbitmq_url)
    netloc = f"{parts.username}:{parts.password}@127.0.0.1:{tls_proxy.port}"
    return parts._replace(scheme="amqps", netloc=netloc).geturl()


def test_messages_of_all_sizes_arrive_whole(tls_url: str, certificate: Path, unique: str) -> None:
    sent = [Message(id=str(n), body=bytes(n * 997 % 90_000)) for n in range(300)]
    options = {"ca_certs": str(certificate), "server_hostname": "localhost"}

    with (
        closing(KombuTransport(tls_url, ssl=options, queue_type="classic")) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        results = session.send([Outgoing(unique, one) for one in sent])
        found = []
        with closing(session.receiver(unique, prefetch=50)) as receiver:
            while received := receiver.receive(50, 1):
                found += [one.message for one in received]
                receiver.ack(received)
        left = session.count(unique)
        session.delete_queues([unique])

    assert results == [SendResult.CONFIRMED] * 300
    assert found == [with_properties(one) for one in sent]
    assert left == 0


def test_an_interrupt_ends_a_wait(tls_url: str, certificate: Path, unique: str) -> None:
    options = {"ca_certs": str(certificate), "server_hostname": "localhost"}
    with (
        closing(KombuTransport(tls_url, ssl=options)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([unique])
        with closing(session.receiver(unique, prefetch=50)) as receiver:
            thread = threading.Thread(target=receiver.interrupt)
            start = time.monotonic()
            thread.start()

            assert receiver.receive(1, 30) == []
            assert time.monotonic() - start < 5
            thread.join()
        session.delete_queues([unique])


@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_a_broker_that_cannot_prove_its_name_is_not_spoken_to(
    tls_url: str, certificate: Path, wrong: str
) -> None:
    options: dict[str, Any] | None = None
    if wrong == "name":  # the host of the URL is 127.0.0.1
        options = {"ca_certs": str(certificate), "server_hostname": None}

    with (
        closing(KombuTransport(tls_url, ssl=options)) as transport,
        pytest.raises(TransportUnavailable, match=r"(?i)certificate"),
    ):
        transport.check()


# --- another broker's certificate ---------------------------------------------------------------


IMPOSTOR: Final = "127.0.0.77"


class Impostor:
    """A server with a sound certificate of another name; it records the clear text that it gets."""

    def __init__(self, certificate: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        # An address of its own: clients of other tests look for servers at ports of 127.0.0.1.
        self._listener = socket.create_server((IMPOSTOR, 0))
        self.port = self._listener.getsockname()[1]
        self.heard = b""
        self.handshakes = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.settimeout(5)
            with client, contextlib.suppress(OSError):
                first = client.recv(1, socket.MSG_PEEK)
                if first != b"\x16":  # not TLS: a client that speaks clear text
                    self.heard += client.recv(65_536)
                    continue
                with self._context.wrap_socket(client, server_side=True) as spoken:
                    self.handshakes += 1
                    self.heard += spoken.recv(65_536)


@pytest.fixture
def impostor(certificate: Path) -> Iterator[Impostor]:
    made = Impostor(certificate)
    yield made
    made.close()


def _settings(name: str, certificate: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the ssl table called *name*, and the query of the URL."""
    file = str(certificate)
    tables: dict[str, dict[str, Any] | None] = {
        "none": None,
        "empty": {},
        "authority": {"ca_certs": file},
        "authority-by-its-redis-name": {"ssl_ca_certs": file},
        "required": {"ca_certs": file, "cert_reqs": "required"},
        "required-as-a-number": {"ca_certs": file, "cert_reqs": ssl.CERT_REQUIRED},
        "checked-name": {"ca_certs": file, "check_hostname": True},
        "own-certificate": {"ca_certs": file, "certfile": file, "keyfile": file},
        "in-the-url": None,
    }
    return tables[name], f"?ssl_ca_certs={file}" if name == "in-the-url" else ""


@pytest.mark.parametrize("scheme", ["amqps", "rediss"])
@pytest.mark.parametrize(
    "settings",
    [
        "none",
        "empty",
        "authority",
        "authority-by-its-redis-name",
        "required",
        "required-as-a-number",
        "checked-name",
        "own-certificate",
        "in-the-url",
    ],
)
def test_a_server_of_another_name_hears_nothing(
    impostor: Impostor,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    settings: str,
) -> None:
    # The machine's own authorities vouch for the certificate too: only the name is wrong.
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    table, query = _settings(settings, certificate)
    url = f"{scheme}://user:password@{IMPOSTOR}:{impostor.port}/0{query}"

    with (
        closing(KombuTransport(url, ssl=table, accept_loss=True)) as transport,
        pytest.raises(TransportUnavailable, match=r"(?i)certificate"),
    ):
        transport.check()

    assert impostor.heard == b""


@pytest.mark.parametrize("scheme", ["amqps", "rediss"])
def test_tls_insecure_alone_turns_the_checks_off(impostor: Impostor, scheme: str) -> None:
    url = f"{scheme}://user:password@{IMPOSTOR}:{impostor.port}/0"
    with closing(KombuTransport(url, tls_insecure=True, accept_loss=True)) as transport:
        with pytest.raises(TransportUnavailable):
            transport.check()

        assert transport.link_security is not None
        assert transport.link_security.is_broken
    assert impostor.handshakes
    assert impostor.heard


@pytest.mark.parametrize("insecure", [False, True])
def test_a_sentinel_hears_nothing_before_its_name_is_checked(
    impostor: Impostor, certificate: Path, insecure: bool
) -> None:
    sentinels = {"password": "s3cret", "retry": Retry(NoBackoff(), 0)}
    transport = KombuTransport(
        f"sentinel://{IMPOSTOR}:{impostor.port}",
        ssl={"ca_certs": str(certificate)},
        tls_insecure=insecure,
        accept_loss=True,
        channel_options={"master_name": "shop", "sentinel_kwargs": sentinels},
    )
    with closing(transport), pytest.raises(TransportUnavailable, match="No master found"):
        transport.check()

    assert (b"s3cret" in impostor.heard) is insecure
    assert bool(impostor.handshakes) is insecure


@pytest.mark.parametrize("scheme", ["amqps", "rediss"])
@pytest.mark.parametrize(
    "off",
    [
        {"cert_reqs": "none"},
        {"cert_reqs": ssl.CERT_OPTIONAL},
        {"ssl_cert_reqs": "CERT_NONE"},
        {"check_hostname": False},
        {"ssl_check_hostname": "false"},
    ],
)
def test_a_setting_that_turns_one_check_off_is_refused(scheme: str, off: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="tls_insecure"):
        KombuTransport(f"{scheme}://broker/0", ssl=off, accept_loss=True)
    [(name, value)] = off.items()
    if isinstance(value, str) and name.startswith("ssl_"):
        with pytest.raises(ConfigurationError, match=name):
            KombuTransport(f"{scheme}://broker/0?{name}={value}", accept_loss=True)


@pytest.mark.parametrize("scheme", ["amqps", "rediss"])
def test_an_unknown_parameter_of_tls_is_refused_by_name(scheme: str) -> None:
    with pytest.raises(UnknownSetting, match="ssl_ca_cert"):
        KombuTransport(f"{scheme}://broker/0?ssl_ca_cert=/ca.pem", accept_loss=True)
    with pytest.raises(UnknownSetting, match="ssl_validate_ocsp"):
        KombuTransport(f"{scheme}://broker/0", ssl={"ssl_validate_ocsp": True}, accept_loss=True)


@pytest.mark.parametrize("scheme", ["amqps", "rediss"])
@pytest.mark.parametrize("name", ["ssl", "transport", "heartbeat", "socket_timeout", "ca_certs"])
def test_a_parameter_of_a_url_that_kombu_would_misread_is_refused_by_name(
    scheme: str, name: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"parameter '{name}'"):
        KombuTransport(f"{scheme}://first/0;{scheme}://broker/0?{name}=1", accept_loss=True)


@pytest.mark.parametrize("scheme", ["amqps", "rediss"])
@pytest.mark.parametrize("name", ["ca_certs", "certfile", "keyfile"])
@pytest.mark.parametrize("wrong", ["missing.pem", "nul\0", 7.5])
def test_a_file_that_cannot_be_read_is_refused_by_name(scheme: str, name: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"{name} = {wrong!r}")):
        KombuTransport(f"{scheme}://localhost", ssl={name: wrong}, accept_loss=True)


def test_the_number_of_an_open_file_is_no_file_of_certificates() -> None:
    for number in os.pipe():
        with pytest.raises(ConfigurationError, match=f"ca_certs = {number}"):
            KombuTransport("amqps://localhost", ssl={"ca_certs": number})
        os.close(number)


@pytest.mark.parametrize("scheme", ["amqp", "pyamqp", "redis", "sentinel"])
def test_a_plain_connection_to_another_host_needs_consent(scheme: str) -> None:
    url = f"{scheme}://user:s3cret@broker.example/0"

    with pytest.raises(CombinationRefused, match="allow_plaintext") as refused:
        KombuTransport(url, accept_loss=True)
    options = {"master_name": "shop"} if scheme == "sentinel" else {}
    admitted = KombuTransport(url, accept_loss=True, allow_plaintext=True, channel_options=options)

    assert "s3cret" not in str(refused.value)
    assert admitted.link_security is not None
    assert "over the network" in admitted.link_security.text


def test_one_remote_broker_among_several_needs_consent() -> None:
    with pytest.raises(CombinationRefused, match=r"broker\.example"):
        KombuTransport("amqp://localhost//;amqp://broker.example//")


@pytest.mark.parametrize(
    "url",
    [
        "amqp://",
        "amqp://localhost//",
        "amqp://127.0.0.2//",
        "amqp://[::1]//",
        "amqp://rabbit.localhost//",
        f"amqp://{socket.gethostname()}//",
    ],
)
def test_a_plain_connection_that_stays_on_this_machine_needs_none(url: str) -> None:
    link = KombuTransport(url).link_security

    assert link is not None
    assert "does not leave this machine" in link.text


def test_a_plain_management_api_on_another_host_needs_consent() -> None:
    with pytest.raises(CombinationRefused, match="management API"):
        KombuTransport("amqps://localhost//", management_url="http://broker.example:15672")


def test_a_redis_behind_a_sound_certificate_is_reached(
    redis_url: str, certificate: Path, unique: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    parts = urlsplit(redis_url)
    with Proxy((parts.hostname or "127.0.0.1", parts.port or 6379), context) as proxy:
        user, at, _ = parts.netloc.rpartition("@")
        netloc = f"{user}{at}localhost:{proxy.port}"
        url = parts._replace(scheme="rediss", netloc=netloc).geturl()
        with closing(
            KombuTransport(f"{url}?ssl_ca_certs={certificate}", accept_loss=True)
        ) as transport:
            transport.check()

    assert proxy.connections
