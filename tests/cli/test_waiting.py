"""A message that was sent and is not stored yet is counted, and its cancel takes effect."""

from __future__ import annotations

import json

from tests.cli.programs import Folder
from timeoutmgr.message.routes import timeout_id

NO_BROKER = "amqp://guest:guest@127.0.0.1:1//"


def test_waiting_messages_are_counted_and_a_cancel_of_a_waiting_message_takes_effect(
    folder: Folder,
) -> None:
    folder.run("install")
    for number in range(2):
        sent = folder.run(
            "send", folder.endpoint, "Hello", "{}", "--delay", "1h", "--id", f"m{number}"
        )
        assert sent.returncode == 0, sent.stdout
    doomed = timeout_id(folder.endpoint, "m0")

    listed, printed = folder.run("--json", "list").json(), folder.run("list")
    shown, said = folder.run("--json", "show", doomed), folder.run("show", doomed)
    status, looked = folder.run("--json", "status").json(), folder.run("status")
    cancelled = folder.run("--json", "cancel", doomed)

    assert (listed["total"], listed["waiting"]) == (0, 2)
    sentence = f"2 messages wait in {folder.endpoint}.Timeouts to be stored"
    assert sentence in printed.stdout
    assert shown.returncode == 3
    assert shown.json() == {"id": doomed, "state": "unknown", "waiting": 2}
    assert sentence in said.stdout
    assert status["waiting"] == 2
    assert "waiting to be stored" in looked.stdout
    assert (cancelled.returncode, cancelled.json()["results"]) == (
        0,
        {doomed: "will_be_cancelled"},
    )


def test_the_number_of_waiting_messages_is_unknown_while_the_broker_is_away(folder: Folder) -> None:
    folder.variables["TIMEOUTMGR_PERSISTENCE"] = f"sqlite:///{folder.path / 'store.db'}"
    assert folder.run("install").returncode == 0
    folder.variables["TIMEOUTMGR_TRANSPORT"] = NO_BROKER

    listed, printed = folder.run("--json", "list"), folder.run("list")
    status = folder.run("--json", "status")

    assert (listed.returncode, listed.json()["waiting"]) == (0, None)
    assert f"wait in {folder.endpoint}.Timeouts to be stored is not known" in printed.stdout
    assert json.loads(status.stdout)["waiting"] is None
    assert json.loads(status.stdout)["unavailable"]
