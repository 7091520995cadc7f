"""The inspection of existing queues finds the lossy properties; it creates and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import amqp
import pytest

from tests.cli.programs import wait_until
from tests.services.private import PrivateServer
from tests.services.rabbitmq import PrivateRabbitMQ
from timeoutmgr.contracts import InspectsQueues, QueueReport, TransportSession
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.transport.amqp import queue_inspection
from timeoutmgr.transport.amqp.queue_inspection import (
    QueueInspection,
    UnreadableProperties,
    probe,
)
from timeoutmgr.transport.kombu_transport import KombuTransport
from timeoutmgr.transport.queue_view import QueueProperties

QUORUM = {"x-queue-type": "quorum"}
CLASSIC = {"x-queue-type": "classic"}
LIMITED: dict[str, object] = {**QUORUM, "x-delivery-limit": 2}
TO_QUEUE: dict[str, object] = {"x-dead-letter-exchange": ""}
TO_FANOUT: dict[str, object] = {"dead-letter-exchange": "amq.fanout"}
TO_NOTHING: dict[str, object] = {"dead-letter-exchange": "no-such-exchange"}


@pytest.fixture
def foreign(raw_channel: amqp.Channel, unique: str) -> Iterator[Callable[..., str]]:
    """Declare a queue as a stranger would."""

    def declare(**given: Any) -> str:
        wanted: dict[str, Any] = {"durable": True, "auto_delete": False} | given
        raw_channel.queue_declare(unique, **wanted)
        return unique

    yield declare
    raw_channel.queue_delete(unique)


def inspected(session: TransportSession, *names: str) -> list[QueueReport]:
    assert isinstance(session, InspectsQueues)
    return session.inspect_queues(names)


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        pytest.param({"durable": False}, ["durable is false"], id="transient"),
        pytest.param({"auto_delete": True}, ["auto_delete is true"], id="auto-delete"),
        pytest.param({"arguments": {"x-expires": 60_000}}, ["x-expires is 60000"], id="expires"),
        pytest.param({"arguments": {"x-message-ttl": 1000}}, ["x-message-ttl is 1000"], id="ttl"),
        pytest.param({"arguments": {"x-max-length": 10}}, ["x-max-length is 10"], id="length"),
        pytest.param(
            {"arguments": {"x-max-length-bytes": 9, **QUORUM}},
            ["x-max-length-bytes is 9"],
            id="bytes-on-a-quorum-queue",
        ),
        pytest.param(
            {"arguments": {"x-max-length": 10, "x-overflow": "drop-head", **QUORUM}},
            ["x-max-length is 10"],
            id="drop-head",
        ),
        pytest.param(
            {
                "arguments": {
                    "x-max-length": 10,
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": "error",
                }
            },
            ["x-max-length is 10"],
            id="drop-head-with-a-dead-letter-exchange",
        ),
        pytest.param(
            {"arguments": {"x-max-length": 10, "x-overflow": "reject-publish", **QUORUM}},
            [],
            id="reject-publish",
        ),
        pytest.param(
            {"arguments": {"x-max-length": 10, "x-overflow": "reject-publish-dlx"}},
            [],
            id="reject-publish-dlx",
        ),
        pytest.param(
            {"arguments": {"x-max-length": 10, "x-overflow": "reject-publish-dlx", **QUORUM}},
            ["x-max-length is 10: a full queue drops its oldest message (drop-head, as"],
            id="reject-publish-dlx-on-a-quorum-queue",
        ),
        pytest.param(
            {"arguments": {"x-single-active-consumer": True, "x-max-priority": 3}}, [], id="sound"
        ),
        pytest.param(
            {
                "durable": False,
                "auto_delete": True,
                "arguments": {"x-expires": 60_000, "x-message-ttl": 5, "x-max-length": 7},
            },
            ["durable", "auto_delete", "x-expires is 60000", "x-message-ttl is 5", "x-max-length"],
            id="everything-at-once",
        ),
        pytest.param({"arguments": {"x-queue-type": "stream"}}, ["'stream'"], id="stream"),
        pytest.param(
            {"arguments": {"x-delivery-limit": 2, **QUORUM}},
            ["the delivery limit is 2, and no dead-letter exchange"],
            id="delivery-limit",
        ),
        pytest.param(
            {"arguments": LIMITED | {"x-dead-letter-exchange": "amq.fanout"}},
            [],
            id="delivery-limit-with-a-dead-letter-exchange",
        ),
        pytest.param(
            {"arguments": LIMITED | {"x-dead-letter-exchange": "no-such-exchange"}},
            ["there is no exchange 'no-such-exchange' for dead messages"],
            id="delivery-limit-with-a-missing-exchange",
        ),
        pytest.param(
            {"arguments": LIMITED | TO_QUEUE | {"x-dead-letter-routing-key": "no-such-queue"}},
            ["there is no queue 'no-such-queue' for dead messages"],
            id="delivery-limit-with-a-missing-queue",
        ),
        pytest.param(
            {"arguments": LIMITED | TO_QUEUE},
            ["the broker ends the cycle of dead messages"],
            id="delivery-limit-with-a-cycle",
        ),
        pytest.param(
            {"arguments": QUORUM | {"x-dead-letter-exchange": "no-such-exchange"}},
            [],
            id="a-missing-exchange-without-a-delivery-limit",
        ),
    ],
)
def test_each_property_that_loses_messages_is_reported(
    session: TransportSession,
    foreign: Callable[..., str],
    declared: dict[str, Any],
    named: list[str],
) -> None:
    name = foreign(**declared)

    [report] = inspected(session, name)

    assert report.queue == name
    assert report.unchecked == ""
    assert len(report.losses) == len(named)
    for loss, expected in zip(report.losses, named, strict=True):
        assert expected in loss


def test_an_exclusive_queue_of_a_stranger_is_reported(
    session: TransportSession, raw_channel: amqp.Channel, unique: str
) -> None:
    raw_channel.queue_declare(unique, exclusive=True)

    [report] = inspected(session, unique)

    assert "exclusive is true" in report.losses[0]


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_an_installed_queue_needs_one_probe_and_has_no_loss(
    rabbitmq_url: str, unique: str, queue_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_inspection, "_MOST_DIFFERENCES", 1)
    error = f"{unique}.error"
    with (
        closing(KombuTransport(rabbitmq_url, queue_type=queue_type)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues([error])
        session.create_queues([unique], error_queue=error)
        assert isinstance(session, InspectsQueues)

        reports = [
            *session.inspect_queues([error]),
            *session.inspect_queues([unique], error_queue=error),
        ]

        session.delete_queues([unique, error])
    assert [(each.queue, each.losses, each.doubts, each.unchecked) for each in reports] == [
        (error, (), (), ""),
        (unique, (), (), ""),
    ]


def test_a_classic_queue_in_place_of_a_quorum_queue_is_doubted(
    rabbitmq_url: str, foreign: Callable[..., str]
) -> None:
    name = foreign()
    with (
        closing(KombuTransport(rabbitmq_url, queue_type="quorum")) as transport,
        closing(transport.session()) as session,
    ):
        [report] = inspected(session, name)

    assert report.losses == ()
    assert "classic queue" in report.doubts[0]


def test_a_missing_queue_is_left_out_and_is_not_made(
    session: TransportSession, unique: str
) -> None:
    assert inspected(session, unique) == []
    assert session.missing_queues([unique]) == [unique]


@pytest.mark.parametrize("expected", [{}, QUORUM, CLASSIC], ids=["none", "quorum", "classic"])
def test_a_probe_of_a_queue_that_vanished_meanwhile_creates_nothing(
    session: TransportSession,
    raw_channel: amqp.Channel,
    unique: str,
    expected: dict[str, object],
) -> None:
    assert probe(raw_channel, unique, expected) is None

    assert session.missing_queues([unique]) == [unique]


def test_a_probe_changes_nothing_of_the_queue_and_its_messages(
    session: TransportSession, raw_channel: amqp.Channel, foreign: Callable[..., str]
) -> None:
    name = foreign(arguments={"x-max-length": 10, "x-message-ttl": 60_000})
    raw_channel.basic_publish(amqp.Message("kept"), routing_key=name)

    first, second = inspected(session, name), inspected(session, name)

    assert first == second
    message = raw_channel.basic_get(name, no_ack=True)
    assert message is not None
    assert message.body == "kept"


class CutOff:
    """A channel to a broker whose answer is longer than AMQP's 255 bytes."""

    def queue_declare(self, name: str, **_: object) -> None:
        raise amqp.PreconditionFailed(
            f"inequivalent arg 'x-max-length' for queue '{name}", (50, 10)
        )


def test_an_answer_that_is_cut_off_is_no_answer() -> None:
    with pytest.raises(UnreadableProperties, match="not understood"):
        probe(CutOff(), "q" * 250, {})


def test_an_answer_that_is_cut_inside_a_character_leaves_the_queue_unchecked(
    session: TransportSession, raw_channel: amqp.Channel
) -> None:
    name = "ü" * 99
    raw_channel.queue_declare(name, durable=True, auto_delete=False, arguments={"x-max-length": 9})
    try:
        [report] = inspected(session, name)
    finally:
        raw_channel.queue_delete(name)

    assert report.queue == name
    assert 'not understood: "PRECONDITION_FAILED - inequivalent arg' in report.unchecked


def test_without_the_configure_right_and_without_the_api_the_report_says_not_checked(
    private_server: Callable[[str], PrivateServer], unique: str
) -> None:
    server = cast(PrivateRabbitMQ, private_server("rabbitmq"))
    with closing(KombuTransport(server.url)) as owner, closing(owner.session()) as session:
        session.create_queues([unique])
    server.control("add_user", "worker", "secret")
    server.control("set_permissions", "-p", "/", "worker", "^$", ".*", ".*")
    limited = urlsplit(server.url)._replace(netloc=f"worker:secret@127.0.0.1:{server.port}")

    with (
        closing(KombuTransport(limited.geturl(), management_url="off")) as transport,
        closing(transport.session()) as session,
    ):
        [report] = inspected(session, unique)

    assert "no configure permission" in report.unchecked
    assert report.losses == ()


def test_policies_are_read_where_the_management_api_answers(
    private_server: Callable[[str], PrivateServer], unique: str
) -> None:
    server = cast(PrivateRabbitMQ, private_server("rabbitmq"))
    api, both = server.with_management(), [unique, f"{unique}.sound"]
    with (
        closing(KombuTransport(server.url, management_url=api)) as transport,
        closing(transport.session()) as session,
    ):
        session.create_queues(both)
        server.control("set_policy", "loses", f"^{unique}$", '{"message-ttl": 1000}')

        def has_read_both() -> bool:
            reports = inspected(session, *both)
            return bool(reports[0].losses) and not any(each.policies_unread for each in reports)

        # The API returns policies with statistics; the first may be older than the policy.
        wait_until(has_read_both, "the statistics of both queues")

        lossy, sound = inspected(session, *both)

    assert ["a policy sets message-ttl to 1000" in loss for loss in lossy.losses] == [True]
    assert sound.losses == ()
    assert lossy.policies_unread == sound.policies_unread == ""


def test_a_silent_management_api_is_reported_and_fails_nothing(
    rabbitmq_url: str, foreign: Callable[..., str]
) -> None:
    name = foreign(arguments={"x-message-ttl": 1000})
    with (
        closing(KombuTransport(rabbitmq_url, management_url="http://127.0.0.1:9")) as transport,
        closing(transport.session()) as session,
    ):
        [report] = inspected(session, name)

    assert "x-message-ttl is 1000" in report.losses[0]
    assert "http://127.0.0.1:9 does not answer" in report.policies_unread


@pytest.mark.parametrize(
    "url",
    ["host:15672", "ftp://host", "http://u:p@host", "http://", "http://[::1", "http://host:port"],
)
def test_a_management_url_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="management_url"):
        KombuTransport("amqp://localhost//", management_url=url)


def test_an_argument_of_the_queue_decides_the_overflow_and_not_the_policy() -> None:
    full = {"x-max-length": 1}

    def losses(argument: str | None, policy: str | None) -> int:
        arguments = full | ({} if argument is None else {"x-overflow": argument})
        return len(QueueProperties(arguments=arguments, policy={"overflow": policy}).losses(""))

    assert losses("reject-publish", "drop-head") == 0
    assert losses("drop-head", "reject-publish") == 1
    assert losses(None, "reject-publish") == 0
    assert losses(None, None) == 1


@pytest.mark.parametrize(
    ("argument", "policy"),
    [
        ("reject-publish-dlx", None),
        (None, "reject-publish-dlx"),
        ("reject-publish-dlx", "reject-publish"),
    ],
)
def test_a_quorum_queue_drops_its_oldest_message_under_an_overflow_for_classic_queues(
    argument: str | None, policy: str | None
) -> None:
    limited: dict[str, object] = {"x-max-length": 1, "x-overflow": argument}
    quorum, classic = (
        QueueProperties(arguments=limited | kind, policy={"overflow": policy})
        for kind in (QUORUM, CLASSIC)
    )

    assert ["drop-head" in loss for loss in quorum.losses("")] == [True]
    assert quorum.refusals() == ()
    assert classic.losses("") == ()
    assert len(classic.refusals()) == 1


@pytest.mark.parametrize(
    ("arguments", "policy", "queue"),
    [
        ({}, {}, None),
        ({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}, {}, "dead"),
        ({}, {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}, "dead"),
        (
            {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "error"},
            {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"},
            "error",
        ),
        ({"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "dead"}, {}, None),
        ({"x-dead-letter-exchange": ""}, {}, None),
    ],
)
def test_the_queue_of_dead_messages_is_that_of_argument_or_policy(
    arguments: dict[str, object], policy: dict[str, object], queue: str | None
) -> None:
    assert QueueProperties(arguments=arguments, policy=policy).dead_message_queue == queue


@pytest.mark.parametrize(
    ("arguments", "policy", "named"),
    [
        ({}, {}, []),
        ({}, {"message-ttl": 1001}, []),
        ({}, {"message-ttl": 1000}, ["a policy sets message-ttl to 1000"]),
        ({}, {"dead-letter-exchange": "dlx"}, []),
        ({}, {"dead-letter-routing-key": "dead"}, ["the dead-letter routing key is dead"]),
        ({"x-message-ttl": 5}, {}, ["x-message-ttl is 5, and should be 1001"]),
        ({"x-dead-letter-exchange": None}, {}, ["is None, and should be next"]),
        ({"x-expires": 7}, {}, ["x-expires is 7"]),
    ],
)
def test_of_the_arguments_that_a_queue_should_have_only_a_difference_is_a_loss(
    arguments: dict[str, object], policy: dict[str, object], named: list[str]
) -> None:
    meant = {"x-message-ttl": 1001, "x-dead-letter-exchange": "next"}
    found = QueueProperties(arguments=meant | arguments, policy=policy, meant=meant)

    losses = found.losses("")

    assert len(losses) == len(named)
    assert all(words in loss for words, loss in zip(named, losses, strict=True))


def test_a_queue_that_differs_from_the_arguments_that_it_should_have_is_reported(
    session: TransportSession, foreign: Callable[..., str]
) -> None:
    name = foreign(arguments={"x-message-ttl": 1000, "x-dead-letter-exchange": "next"})
    right = {"x-message-ttl": 1000, "x-dead-letter-exchange": "next"}
    assert isinstance(session, InspectsQueues)

    [sound] = session.inspect_queues({name: right})
    [other] = session.inspect_queues({name: right | {"x-message-ttl": 2000}})

    assert sound.losses == ()
    assert other.losses == ("x-message-ttl is 1000, and should be 2000",)


@dataclass(frozen=True)
class Policies:
    """A management API that reports *policy* for each queue."""

    policy: dict[str, object]

    def properties_of(self, queue: str) -> QueueProperties:
        return QueueProperties(policy=self.policy)


CONSUMED = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "error"}


@pytest.mark.parametrize(
    ("expected", "policies", "losses", "doubts"),
    [
        pytest.param(CONSUMED, Policies({}), 1, 0, id="consumed"),
        pytest.param(CONSUMED, None, 0, 1, id="consumed-and-a-policy-may-set-another-limit"),
        pytest.param({}, Policies({}), 0, 1, id="error-queue-from-before-the-upgrade"),
        pytest.param(CONSUMED, Policies({"delivery-limit": 5}), 1, 0, id="policy"),
        pytest.param(CONSUMED, Policies({"delivery-limit": -1}), 0, 0, id="policy-of-no-limit"),
        pytest.param(CONSUMED, Policies(TO_FANOUT), 0, 0, id="policy-with-a-target"),
        pytest.param(CONSUMED, Policies(TO_NOTHING), 1, 0, id="policy-with-a-missing-target"),
    ],
)
def test_the_default_limit_of_rabbitmq_4_is_a_loss_where_nothing_can_change_it(
    raw_channel: amqp.Channel,
    foreign: Callable[..., str],
    expected: dict[str, object],
    policies: Any,
    losses: int,
    doubts: int,
) -> None:
    name = foreign(arguments=QUORUM)

    on_4 = QueueInspection(raw_channel, (4, 0), QUORUM | expected, policies).report(name)
    on_3 = QueueInspection(raw_channel, (3, 13), QUORUM | expected, None).report(name)

    assert (len(on_4.losses), len(on_4.doubts)) == (losses, doubts)
    assert (on_3.losses, on_3.doubts) == ((), ())


@pytest.mark.parametrize(
    ("arguments", "policy", "refuses"),
    [
        ({"x-max-length": 1, "x-overflow": "reject-publish"}, {}, True),
        ({"x-max-length-bytes": 1}, {"overflow": "reject-publish-dlx"}, True),
        ({"x-overflow": "reject-publish"}, {"max-length": 1}, True),
        ({"x-overflow": "reject-publish"}, {}, False),
        ({"x-max-length": 1}, {}, False),
    ],
)
def test_a_length_with_an_overflow_that_rejects_is_a_refusal(
    arguments: dict[str, object], policy: dict[str, object], refuses: bool
) -> None:
    assert bool(QueueProperties(arguments=arguments, policy=policy).refusals()) is refuses


@pytest.mark.parametrize(
    ("arguments", "policy", "limits"),
    [
        pytest.param({}, {}, (None, None), id="classic"),
        pytest.param(QUORUM, {}, (None, 20), id="default"),
        pytest.param(QUORUM | {"x-delivery-limit": -1}, {}, (None, None), id="none"),
        pytest.param(QUORUM | {"x-delivery-limit": 5}, {}, (5, 5), id="argument"),
        pytest.param(QUORUM, {"delivery-limit": 7}, (7, 7), id="policy"),
        pytest.param(
            QUORUM | {"x-delivery-limit": 5}, {"delivery-limit": 7}, (5, 5), id="the-lower-of-two"
        ),
        pytest.param(CLASSIC, {"delivery-limit": 7}, (None, None), id="policy-on-a-classic-queue"),
    ],
)
def test_a_delivery_limit_is_that_of_argument_policy_or_server(
    arguments: dict[str, object], policy: dict[str, object], limits: tuple[int | None, int | None]
) -> None:
    found = QueueProperties(arguments=arguments, policy=policy)

    assert (found.delivery_limit((3, 13)), found.delivery_limit((4, 0))) == limits
