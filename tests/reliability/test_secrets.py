"""Passwords, bodies and headers are in no log line, no error, no repr and no output."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy.engine import make_url

from tests.acceptance.matrix import EMBEDDED, REFERENCE
from tests.acceptance.place import SOON, Party, Place
from tests.reliability.pairs import on
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.cli.main import cli
from timeoutmgr.endpoint.configuration import persistence_from_url, transport_from_url
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.satellites import TimeoutManager

CANARY = "c4n4ry-s3cret"
NOBODY = "127.0.0.1:1"

TRANSPORTS = {
    "rabbitmq away": f"amqp://user:{CANARY}@{NOBODY}//",
    "two rabbitmqs away": f"amqp://a:{CANARY}@{NOBODY};amqp://b:{CANARY}@{NOBODY}",
    "rabbitmq over tls away": f"amqps://user:{CANARY}@{NOBODY}//",
    "redis away": f"redis://:{CANARY}@{NOBODY}/0",
    "sql queue away": f"postgresql+psycopg://user:{CANARY}@{NOBODY}/none",
    "raw slash in a rabbitmq's": f"amqp://user:{CANARY}/x@{NOBODY}//",
    "raw slash in a redis'": f"redis://:{CANARY}/x@{NOBODY}/0",
    "raw sign in a sql queue's": f"postgresql+psycopg://user:{CANARY}?x@{NOBODY}/none",
    "no such scheme": f"ampq://user:{CANARY}@{NOBODY}//",
}
STORES = {
    "postgresql away": f"postgresql+psycopg://user:{CANARY}@{NOBODY}/none",
    "password in the query": f"postgresql+psycopg://{NOBODY}/none?user=u&password={CANARY}",
    "mysql away": f"mysql+pymysql://user:{CANARY}@{NOBODY}/none",
    "no such database": f"oracle://user:{CANARY}@{NOBODY}/none",
    "no url": f"user:{CANARY}@{NOBODY}",
}


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The texts shown in this test; its end adds the log lines of every level and library."""
    shown: list[str] = []
    with caplog.at_level(logging.DEBUG):
        yield shown
    shown += [caplog.text]
    assert [text for text in shown if CANARY in text] == []


def show(said: list[str], do: Callable[[], object]) -> None:
    """Run *do*, which must fail, and keep the texts of its error and of all causes."""
    with pytest.raises(TimeoutManagerError) as failed:
        do()
    error = failed.value
    said += [str(error), repr(error), *traceback.format_exception(error)]


@pytest.mark.parametrize("url", TRANSPORTS.values(), ids=list(TRANSPORTS))
def test_a_transport_that_fails_does_not_show_its_password(said: list[str], url: str) -> None:
    def use() -> None:
        with closing(transport_from_url(url, accept_loss=True)) as transport:
            said.append(f"{transport} {transport!r} {transport.capabilities}")
            transport.check()
            with closing(transport.session()) as session:
                session.create_queues(["any"])

    show(said, use)


@pytest.mark.parametrize("url", STORES.values(), ids=list(STORES))
def test_a_store_that_fails_does_not_show_its_password(said: list[str], url: str) -> None:
    def use() -> None:
        with closing(persistence_from_url(url)) as persistence:
            said.append(f"{persistence} {persistence!r} {persistence.database}")
            persistence.install()

    show(said, use)


@pytest.mark.parametrize("service", ["postgres", "mysql"])
def test_a_wrong_password_is_not_shown(
    said: list[str], request: pytest.FixtureRequest, service: str
) -> None:
    right = make_url(request.getfixturevalue(f"{service}_url"))
    wrong = right.set(username="nobody", password=CANARY).render_as_string(hide_password=False)

    show(said, lambda: persistence_from_url(wrong).install())


def test_a_wrong_password_of_a_broker_is_not_shown(said: list[str], rabbitmq_url: str) -> None:
    wrong = rabbitmq_url.replace("guest:guest", f"guest:{CANARY}")
    assert wrong != rabbitmq_url

    show(said, lambda: transport_from_url(wrong).check())


@pytest.mark.parametrize("url", [*TRANSPORTS.values()][:1])
def test_a_configuration_and_its_endpoint_show_no_password(said: list[str], url: str) -> None:
    config = EndpointConfiguration("sales")
    config.use_transport(url)
    config.use_persistence(STORES["postgresql away"])
    config.enable_feature(TimeoutManager())
    said += [repr(config), str(vars(config)), repr(config.settings())]

    with closing(Endpoint(config)) as endpoint:
        said += [repr(endpoint), str(vars(endpoint))]
        show(said, endpoint.install)
        show(said, endpoint.start)
        show(said, lambda: endpoint.send("billing", "Ping", 1, delay=1))


@pytest.mark.parametrize(
    "words",
    [["doctor"], ["status"], ["install"], ["list"], ["send", "billing", "Ping", "1"], ["run"]],
    ids=lambda words: words[0],
)
def test_a_command_shows_no_password(said: list[str], tmp_path: Path, words: list[str]) -> None:
    settings = tmp_path / "sales.toml"
    settings.write_text(
        f'endpoint = "sales"\ntransport = "{TRANSPORTS["rabbitmq away"]}"\n'
        f'persistence = "{STORES["postgresql away"]}"\nfeatures = ["timeout-manager"]\n'
    )

    for more in ([], ["--json"]):
        ended = CliRunner().invoke(cli, ["--config", str(settings), *more, *words])
        said.append(ended.output)
        assert ended.exit_code != 0
        assert ended.output


@on(EMBEDDED, REFERENCE)
def test_contents_of_a_message_are_never_logged(said: list[str], place: Place) -> None:
    party = Party(place)

    @party.config.handler("Fails")
    def fails(_body: object, _context: object) -> None:
        raise ValueError("broken")

    party.start()
    deleted = place.queue(f"{place.name}-gone")
    secret = {"token": CANARY}

    fine = party.endpoint.send_local("Ping", secret, delay=SOON, headers=secret)
    failing = party.endpoint.send_local("Fails", secret, headers=secret)
    lost = party.endpoint.send(deleted, "Ping", secret, delay=SOON, headers=secret)
    place.session.delete_queues([deleted])

    party.inbox.wait_for_id(fine.message_id)
    assert CANARY.encode() in party.errors.wait_for_id(lost.message_id).body
    said.append(str(party.endpoint.snapshot()))
    party.endpoint.timeouts.cancel(failing.message_id)
