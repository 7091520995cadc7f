"""The commands on an endpoint whose delays are held by RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import amqp
import pytest

from tests.cli.programs import Folder, wait_until
from timeoutmgr.native.infrastructure import delay_topology, with_exchanges
from timeoutmgr.native.names import OURS
from timeoutmgr.transport.kombu_transport import KombuTransport

SETTINGS = """\
endpoint = "{endpoint}"
transport = "{url}"
error_queue = "{endpoint}.error"
features = [{features}]
{more}
"""


class OnRabbitMQ:
    """A folder whose settings change from a timeout manager to native delays."""

    def __init__(self, folder: Folder, url: str) -> None:
        self.folder = folder
        self.run = folder.run
        self._url = url

    def enable(self, *features: str, more: str = "") -> None:
        named = ", ".join(f'"{feature}"' for feature in features)
        if "timeout-manager" in features or more.startswith("disable"):
            more = f'persistence = "sqlite:///timeoutmgr.db"\n{more}'
        text = SETTINGS.format(
            endpoint=self.folder.endpoint, url=self._url, features=named, more=more
        )
        self.folder.write("timeoutmgr.toml", text)


@pytest.fixture
def endpoint(folder: Folder, rabbitmq_url: str) -> Iterator[OnRabbitMQ]:
    with (
        closing(KombuTransport(rabbitmq_url)) as transport,
        closing(transport.session()) as session,
    ):
        # Another test of this virtual host may have left its levels there.
        with_exchanges(session).remove(delay_topology(OURS))
        yield OnRabbitMQ(folder, rabbitmq_url)
        name = folder.endpoint
        session.delete_queues(
            [name, f"{name}.error", f"{name}.Timeouts", f"{name}.TimeoutsDispatcher"]
        )


def test_from_a_timeout_manager_to_native_delays_by_the_commands(endpoint: OnRabbitMQ) -> None:
    name = endpoint.folder.endpoint

    endpoint.enable("timeout-manager")
    assert endpoint.run("install").returncode == 0
    endpoint.enable("native-delayed-delivery", "timeout-manager")
    assert endpoint.run("doctor").returncode == 1  # the levels are missing as yet
    assert endpoint.run("install").returncode == 0
    sent = endpoint.run("--json", "send", name, "Hello", "{}", "--delay", "3d")
    assert sent.json()["id"] is None

    doctor = endpoint.run("--json", "doctor")
    checks = {each["check"]: each for each in doctor.json()["findings"]}
    assert doctor.returncode == 0, doctor.stdout
    assert checks["unroutable"]["level"] == "ok"
    assert checks["timeout manager"]["text"].startswith("drained")
    status = endpoint.run("--json", "status").json()["native"]
    assert status["levels"][OURS.level_name(17)] >= 1
    assert "uninstall timeout-manager" in status["timeout_manager"]

    refused = endpoint.run("uninstall", "timeout-manager")
    assert refused.returncode == 4
    assert "restart every process" in refused.stderr
    endpoint.enable("native-delayed-delivery", more="disable_timeout_manager = true")
    would = endpoint.run("--json", "uninstall", "timeout-manager", "--dry-run").json()
    assert would["removed"] is False
    assert set(would["queues"]) == {f"{name}.Timeouts", f"{name}.TimeoutsDispatcher"}
    done = endpoint.run("uninstall", "timeout-manager")
    assert done.returncode == 0, done.stderr
    assert "the tables are removed" in done.stdout
    status = endpoint.run("--json", "status").json()["native"]
    assert status["timeout_manager"] == "disabled, and nothing of it is left"
    levels = endpoint.run("uninstall", "native-delayed-delivery")
    assert levels.returncode == 4
    assert "perhaps of other endpoints too" in levels.stderr


def test_an_unsupported_command_on_native_delays_names_the_alternative(
    endpoint: OnRabbitMQ,
) -> None:
    endpoint.enable("native-delayed-delivery")

    listed = endpoint.run("list")

    assert listed.returncode == 4
    assert "is not supported" in listed.stderr
    assert "timeoutmgr status" in listed.stderr


def test_levels_of_classic_queues_without_an_alternate_exchange_are_two_warnings(
    endpoint: OnRabbitMQ,
) -> None:
    names = '[native-delayed-delivery]\nnames = "nservicebus-v1"'
    endpoint.enable("native-delayed-delivery", more=f"accept_loss = true\n{names}")
    assert endpoint.run("install").returncode == 0

    doctor = endpoint.run("--json", "doctor")

    checks = {each["check"]: each for each in doctor.json()["findings"]}
    assert checks["at least once"]["level"] == "warn"
    assert "a broker that is killed loses messages" in checks["at least once"]["text"]
    found = checks["unroutable"]
    assert found["level"] == "warn"
    assert r"rabbitmqctl set_policy timeoutmgr-unroutable '^nsb\.'" in found["remedy"]
    removed = endpoint.run("uninstall", "native-delayed-delivery")
    assert removed.returncode == 0, removed.stderr
    wait_until(lambda: endpoint.run("doctor").returncode == 1, "the levels are gone")


def test_the_doctor_names_queues_that_conventional_peers_cannot_reach(
    endpoint: OnRabbitMQ, raw_channel: amqp.Channel
) -> None:
    name = endpoint.folder.endpoint
    endpoint.enable(
        "native-delayed-delivery", more='[native-delayed-delivery]\nnames = "nservicebus-v2"'
    )
    assert endpoint.run("install").returncode == 0
    assert exchanges_found(endpoint)["level"] == "ok"

    raw_channel.exchange_delete(name)

    found = exchanges_found(endpoint)
    assert found["level"] == "fail"
    assert found["text"].startswith(f"missing: {name};")
    assert found["remedy"] == "run `timeoutmgr install`"
    assert endpoint.run("install").returncode == 0
    assert exchanges_found(endpoint)["level"] == "ok"


def exchanges_found(endpoint: OnRabbitMQ) -> dict[str, str]:
    findings = endpoint.run("--json", "doctor").json()["findings"]
    [found] = [each for each in findings if each["check"] == "exchanges"]
    return dict(found)
