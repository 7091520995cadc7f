"""install, run and doctor refuse an existing queue that drops accepted messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import amqp
import pytest

from tests.cli.programs import Folder, wait_until
from timeoutmgr.transport.kombu_transport import KombuTransport

REFUSED = 4


@dataclass(frozen=True)
class OnRabbitMQ:
    """A folder whose endpoint is on RabbitMQ, and a stranger's channel to the same broker."""

    folder: Folder
    stranger: amqp.Channel

    @property
    def timeouts(self) -> str:
        return f"{self.folder.endpoint}.Timeouts"

    @property
    def error_queue(self) -> str:
        return f"{self.folder.endpoint}.error"

    def declare(self, queue: str, **given: Any) -> None:
        """Declare *queue* before the endpoint does."""
        wanted: dict[str, Any] = {"durable": True, "auto_delete": False} | given
        self.stranger.queue_declare(queue, **wanted)

    def doctor(self) -> tuple[int, list[dict[str, str]]]:
        """Return the exit code, and the doctor's findings on queues that exist."""
        ended = self.folder.run("--json", "doctor")
        found = ended.json()["findings"]
        return ended.returncode, [each for each in found if each["check"] == "queues keep"]


@pytest.fixture
def endpoint(folder: Folder, rabbitmq_url: str, raw_channel: amqp.Channel) -> Iterator[OnRabbitMQ]:
    """An endpoint that nothing was installed for."""
    made = OnRabbitMQ(folder, raw_channel)
    folder.variables |= {
        "TIMEOUTMGR_TRANSPORT": rabbitmq_url,
        "TIMEOUTMGR_TRANSPORT_OPTIONS_QUEUE_TYPE": "classic",
        "TIMEOUTMGR_PERSISTENCE": f"sqlite:///{folder.path / 'timeouts.db'}",
        "TIMEOUTMGR_ERROR_QUEUE": made.error_queue,
    }
    yield made
    with closing(KombuTransport(rabbitmq_url)) as transport, closing(transport.session()) as ours:
        names = [folder.endpoint, made.timeouts, f"{made.timeouts}Dispatcher", made.error_queue]
        ours.delete_queues([*names, f"{folder.endpoint}.celery"])


@pytest.mark.parametrize(
    "declared",
    [
        pytest.param({"durable": False}, id="transient"),
        pytest.param({"arguments": {"x-max-length": 10}}, id="max-length"),
        pytest.param({"arguments": {"x-message-ttl": 1000}}, id="message-ttl"),
    ],
)
def test_a_lossy_queue_for_timeouts_is_refused_by_install_run_and_doctor(
    endpoint: OnRabbitMQ, declared: dict[str, Any]
) -> None:
    endpoint.declare(endpoint.timeouts, **declared)

    installed = endpoint.folder.run("install")
    started = endpoint.folder.run("run")
    examined, findings = endpoint.doctor()

    for ended in (installed, started):
        assert ended.returncode == REFUSED, ended.stderr
        assert f"queue '{endpoint.timeouts}'" in ended.stderr
        assert "delete it and run `timeoutmgr install`" in ended.stderr
    assert examined == 1
    [failed] = [each for each in findings if each["level"] == "fail"]
    assert endpoint.timeouts in failed["text"]
    assert "accept_loss" in failed["remedy"]


def test_a_lossy_error_queue_is_refused(endpoint: OnRabbitMQ) -> None:
    endpoint.declare(endpoint.error_queue, arguments={"x-message-ttl": 1000})

    installed = endpoint.folder.run("install")

    assert installed.returncode == REFUSED
    assert f"queue '{endpoint.error_queue}': x-message-ttl is 1000" in installed.stderr


def test_accept_loss_admits_a_lossy_queue_and_the_doctor_warns(endpoint: OnRabbitMQ) -> None:
    endpoint.declare(endpoint.timeouts, arguments={"x-max-length": 10})
    endpoint.folder.variables["TIMEOUTMGR_ACCEPT_LOSS"] = "true"

    installed = endpoint.folder.run("install")
    examined, findings = endpoint.doctor()

    assert installed.returncode == 0, installed.stderr
    assert "may lose accepted messages: x-max-length is 10" in installed.stderr
    assert examined == 0
    assert [each["level"] for each in findings if "x-max-length" in each["text"]] == ["warn"]


def test_queues_that_were_installed_are_found_sound(endpoint: OnRabbitMQ) -> None:
    assert endpoint.folder.run("install").returncode == 0

    examined, findings = endpoint.doctor()

    assert examined == 0
    assert [each["level"] for each in findings] == ["ok"]
    assert endpoint.timeouts in findings[0]["text"]
    assert endpoint.error_queue in findings[0]["text"]


def test_a_lossy_destination_of_another_party_is_a_warning_and_no_refusal(
    endpoint: OnRabbitMQ,
) -> None:
    celery = f"{endpoint.folder.endpoint}.celery"
    lossy = {"x-message-ttl": 60_000, "x-max-length": 10}
    endpoint.declare(celery, auto_delete=True, arguments=lossy)
    program = endpoint.folder.start("run")
    program.wait_for("runs")
    sent = endpoint.folder.run("send", celery, "Hello", "{}", "--delay", "1h")
    assert sent.returncode == 0, sent.stderr
    wait_until(
        lambda: endpoint.folder.run("--json", "list").json()["total"] == 1, "the timeout is stored"
    )

    examined, findings = endpoint.doctor()
    program.stop()

    reported = [each for each in findings if celery in each["text"]]
    assert examined == 0
    assert [each["level"] for each in reported] == ["warn"] * 3
    assert "auto_delete is true" in reported[0]["text"]
    assert "x-max-length is 10: a full queue drops its oldest message" in reported[2]["text"]
