"""``run --log-format json``: a document a line, with the ids of the message, and no secret."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from tests.cli.programs import Folder
from tests.support.unprintable import Unprintable, without_traceback
from timeoutmgr.cli.log_format import JsonFormatter
from timeoutmgr.cli.output import text_formatter

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
APP = """\
from timeoutmgr import EndpointConfiguration, RecoverabilitySettings
from timeoutmgr.satellites import TimeoutManager

config = EndpointConfiguration("{endpoint}")
config.recoverability = RecoverabilitySettings(immediate=1, delayed=0)
config.enable_feature(TimeoutManager())
"""
LOGGING_APP = """
import logging

@config.handler("Noted")
{prefix}def noted(message, context):
    logging.getLogger("shop").warning("noted %s", message)

@config.handler("Failing")
{prefix}def failing(message, context):
    raise ValueError("amqp://user:hunter2@broker is away")
"""


def shown(**fields: Any) -> dict[str, Any]:
    """Return the document of a record with *fields*."""
    record = logging.LogRecord(
        "timeoutmgr.x", logging.WARNING, "x.py", 1, "said %s", ("this",), None
    )
    record.created, record.msecs = 1_795_600_000.25, 250.0
    for name, value in fields.items():
        setattr(record, name, value)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert line.isascii()
    document: dict[str, Any] = json.loads(line)
    return document


def test_a_line_has_time_level_logger_text_and_its_fields() -> None:
    assert shown(event="poll_failed", message_id="m1", attempt=2) == {
        "time": "2026-11-25T09:46:40.250Z",
        "level": "WARNING",
        "logger": "timeoutmgr.x",
        "text": "said this",
        "event": "poll_failed",
        "message_id": "m1",
        "attempt": 2,
    }


def test_the_secrets_of_urls_are_masked_in_text_fields_and_tracebacks() -> None:
    url = "postgresql://me:hunter2@db/shop"
    try:
        raise ValueError(url)
    except ValueError:
        document = shown(msg=f"lost {url}", args=(), destination=url, exc_info=sys.exc_info())

    assert "hunter2" not in json.dumps(document)
    assert document["destination"] == "postgresql://me:***@db/shop"
    assert "ValueError: postgresql://me:***@db/shop" in document["exception"]


@pytest.mark.parametrize(
    "args", [("amqp://me:hunter2@broker", 1), (Unprintable(),)], ids=["few", "no text"]
)
def test_a_line_whose_arguments_are_wrong_says_so(args: tuple[object, ...]) -> None:
    document = shown(msg="%d said", args=args, cause=Unprintable())

    assert document["text"].startswith("%d said (wrong arguments ")
    assert "TypeError: %d format: a real number is required, not " in document["text"]
    assert "hunter2" not in document["text"]
    assert document["cause"] == "<Unprintable: its text raised RuntimeError>"


@pytest.mark.parametrize("formatter", [JsonFormatter(), text_formatter()], ids=["json", "text"])
def test_an_error_whose_traceback_cannot_be_written_is_logged_without_it(
    formatter: logging.Formatter,
) -> None:
    error = without_traceback()
    record = logging.LogRecord("x", 40, "f", 1, "said", (), (type(error), error, None))

    assert "SyntaxError: its traceback raised AttributeError" in formatter.format(record)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_has_not_is_a_text(value: float) -> None:
    assert shown(ratio=value)["ratio"] == str(value)
    assert shown(ratio=10**400, share=0.5, is_late=True)["share"] == 0.5


def test_a_long_value_is_cut() -> None:
    assert len(shown(destination="é" * 10_000)["destination"].encode()) <= 4096


def documents(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("prefix", ["", "async "], ids=["plain", "coroutine"])
def test_each_line_about_a_message_has_its_ids_also_a_handlers_own(
    folder: Folder, prefix: str
) -> None:
    app = APP.format(endpoint=folder.endpoint)
    folder.write("logs.py", app + LOGGING_APP.format(prefix=prefix))
    program = folder.start("run", "--app", "logs:config", "--log-format", "json")
    program.wait_for(" runs ")
    folder.run(
        *("send", folder.endpoint, "Noted", "1", "--delay", "10ms", "--saga", "s1"),
        *("--header", f"traceparent=00-{TRACE}-00f067aa0ba902b7-01", "--id", "m1"),
    )
    folder.run("send", folder.endpoint, "Failing", "1", "--delay", "10ms", "--id", "m2")
    program.wait_for("noted 1")
    program.wait_for("ValueError")
    assert program.stop() == 0

    found = documents(program.err)
    [own] = [line for line in found if line["logger"] == "shop"]
    assert own["message_id"] == "m1"
    assert own["saga_id"] == "s1"
    assert own["trace_id"] == TRACE
    assert len(own["timeout_id"]) == 36
    assert own["level"] == "WARNING"
    failed = [line for line in found if line.get("message_id") == "m2"]
    assert failed
    assert "hunter2" not in "\n".join(program.err)


def test_the_lines_of_each_process_bear_its_number(folder: Folder) -> None:
    program = folder.start("run", "--processes", "2", "--log-format", "json")
    program.wait_for(" runs ", times=2)
    assert program.stop() == 0

    found = documents(program.err)
    started = [line["process"] for line in found if line.get("event") == "endpoint_started"]
    assert sorted(started) == [1, 2]
    assert {"process_started"} <= {line.get("event") for line in found if "process" not in line}
