"""Delay levels to which a policy of the broker adds something, or whose arguments are not ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.native.fleet import Fleet
from timeoutmgr import Endpoint, EndpointConfiguration
from timeoutmgr.cli.doctor.findings import own_queue_findings
from timeoutmgr.contracts.reports import Finding, Level
from timeoutmgr.endpoint.assembly import assemble
from timeoutmgr.errors import CombinationRefused, LossyQueue
from timeoutmgr.native.names import OURS
from timeoutmgr.transport.amqp.management import ManagementApi
from timeoutmgr.transport.queue_view import QueueProperties

SetPolicy = Callable[..., None]
LONGEST = 2**27 * 1000 + OURS.margin


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> SetPolicy:
    """Have the management API report a policy for our levels alone."""

    def set_policy(**values: object) -> None:
        named = {name.replace("_", "-"): value for name, value in values.items()}

        def properties_of(_: ManagementApi, queue: str) -> QueueProperties:
            is_level = queue.startswith("timeoutmgr.v1.delay-")
            return QueueProperties(policy=named if is_level else {})

        monkeypatch.setattr(ManagementApi, "properties_of", properties_of)

    return set_policy


def installed(fleet: Fleet) -> EndpointConfiguration:
    """Return an endpoint whose queues and levels are there."""
    name = f"{fleet.stem}.sales"
    Endpoint(fleet.native(name)).install()
    return fleet.native(name)


def found_by_doctor(config: EndpointConfiguration) -> list[Finding]:
    findings = own_queue_findings(assemble(config.settings()))
    return [each for each in findings if each.level is not Level.OK]


@pytest.mark.parametrize(
    ("values", "refusal", "queue", "words"),
    [
        ({"message_ttl": 3000}, LossyQueue, "level-27 and 25 more", "sets message-ttl to 3000"),
        ({"expires": 9000}, LossyQueue, "level-27 and 34 more", "a policy sets expires to 9000"),
        (
            {"dead_letter_routing_key": "dead"},
            LossyQueue,
            "level-27 and 34 more",
            "the dead-letter routing key is dead",
        ),
        (
            {"max_length": 5},
            CombinationRefused,
            "level-27 and 34 more",
            "a policy sets max-length to 5, and its overflow is reject-publish",
        ),
    ],
)
@pytest.mark.parametrize("send_only", [False, True])
def test_a_policy_that_changes_levels_is_refused_by_install_start_and_doctor(
    fleet: Fleet,
    policy: SetPolicy,
    values: dict[str, object],
    refusal: type[Exception],
    queue: str,
    words: str,
    send_only: bool,
) -> None:
    config = installed(fleet)
    if send_only:
        config.send_only()

    policy(**values)

    for begin in (Endpoint.install, Endpoint.start):
        with pytest.raises(refusal, match=words):
            begin(Endpoint(config))
    [failed] = found_by_doctor(config)
    assert failed.level is Level.FAIL
    assert queue in failed.text
    assert words in failed.text


def test_accept_loss_admits_levels_that_a_policy_changes_and_the_doctor_warns(
    fleet: Fleet, policy: SetPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    config = installed(fleet)
    config.accept_loss()

    policy(message_ttl=3000)
    fleet.start(config)

    logged = [each for each in caplog.records if vars(each).get("event") == "queue_may_lose"]
    assert ["level-27 and 25 more" in each.getMessage() for each in logged] == [True]
    assert [each.level for each in found_by_doctor(config)] == [Level.WARN]


@pytest.mark.parametrize("values", [{}, {"message_ttl": LONGEST}, {"dead_letter_exchange": "dlx"}])
def test_a_policy_that_changes_nothing_of_a_level_is_no_finding(
    fleet: Fleet, policy: SetPolicy, values: dict[str, object]
) -> None:
    config = installed(fleet)

    policy(**values)

    fleet.start(config)
    assert found_by_doctor(config) == []


def test_a_lower_time_to_live_of_a_policy_is_a_finding_at_the_levels_above_alone(
    fleet: Fleet, policy: SetPolicy
) -> None:
    config = installed(fleet)

    policy(message_ttl=LONGEST - 1)

    [failed] = found_by_doctor(config)
    assert f"queue '{OURS.level_name(27)}': a policy sets message-ttl" in failed.text


@pytest.mark.usefixtures("levels_of_others_go")
def test_levels_of_classic_queues_are_no_finding_beside_quorum_queues(fleet: Fleet) -> None:
    config = fleet.native(f"{fleet.stem}.sales", names="nservicebus-v1")
    config.accept_loss()
    fleet.start(config)

    assert found_by_doctor(config) == []
