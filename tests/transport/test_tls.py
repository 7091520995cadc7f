"""AMQP over TLS: whole messages in both directions, and no broker that cannot prove its name."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.transport.proxy import Proxy
from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import TransportUnavailable
from timeoutmgr.message import Message, Outgoing
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
    assert found == sent
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
    if wrong == "name":  # of the URL: it says 127.0.0.1
        options = {"ca_certs": str(certificate), "server_hostname": None}

    with (
        closing(KombuTransport(tls_url, ssl=options)) as transport,
        pytest.raises(TransportUnavailable, match=r"(?i)certificate"),
    ):
        transport.check()
