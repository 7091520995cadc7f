"""deadletters and journal: list, show, retry and remove the stored copies of a node."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.programs import Folder
from tests.deadletter.making import a_stored_copy
from tests.support.makers import a_message
from timeoutmgr.cli.deadletters.selection import CopySelection
from timeoutmgr.contracts import TransportSession
from timeoutmgr.database import Database
from timeoutmgr.deadletter import DeadLetterStore, JournalLevel, MessageClass, NodeQueue
from timeoutmgr.deadletter.manager import QueueManager
from timeoutmgr.deadletter.queues import StoredCopyFilter, StoredCopyQueue
from timeoutmgr.endpoint.configuration import transport_from_url
from timeoutmgr.message.headers import ENCLOSED_MESSAGE_TYPES
from timeoutmgr.message.instants import Micros, from_micros
from timeoutmgr.message.message import Message, Outgoing

SETTINGS = """\
endpoint = "{endpoint}"
features = ["dead-letter-queues"]
check_destinations = false

[dead-letter-queues]
node = "n1"
"""
OLD: Micros = 1_700_000_000_000_000
BAD = MessageClass.NACK_BAD_DST_Q


class Shop:
    """A folder with an installed endpoint, and its node's queue manager."""

    def __init__(self, folder: Folder, session: TransportSession) -> None:
        self.folder = folder
        self.session = session
        url = f"sqlite:///{folder.path / 'timeoutmgr.db'}"
        self.manager = QueueManager(store=DeadLetterStore(Database(url)), node="n1")

    def dead(self, *arguments: str) -> tuple[int, str]:
        done = self.folder.run("deadletters", *arguments)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    def listed(self, *arguments: str) -> list[str]:
        done = self.folder.run("--json", "deadletters", "list", *arguments)
        return [dead_letter["message_id"] for dead_letter in done.json()["letters"]]


@pytest.fixture
def shop(folder: Folder) -> Iterator[Shop]:
    folder.write("timeoutmgr.toml", SETTINGS.format(endpoint=folder.endpoint))
    assert folder.run("install").returncode == 0
    with (
        closing(transport_from_url(f"sqlite:///{folder.path / 'timeoutmgr.db'}")) as transport,
        closing(transport.session()) as session,
    ):
        made = Shop(folder, session)
        yield made
        made.manager.store.close()


def test_dead_letters_are_listed_and_selected_by_class_and_reason(shop: Shop) -> None:
    for number in range(3):
        shop.manager.place(
            a_stored_copy(f"m{number}", "billing", kept=OLD + number, reason="no queue")
        )
    purged = MessageClass.NACK_Q_PURGED
    shop.manager.place(a_stored_copy("m3", "shipping", message_class=purged, transactional=True))
    typed = Message(id="m4", headers={ENCLOSED_MESSAGE_TYPES: "shop.Order, shop"})
    shop.manager.place(replace(a_stored_copy("m4"), message=typed))

    both = shop.folder.run("--json", "deadletters", "list").json()
    _, text = shop.dead("list")

    assert [(one["class"], one["reason"], one["count"]) for one in both["groups"]] == [
        ("NACK_BAD_DST_Q", "no queue", 3),
        ("NACK_BAD_DST_Q", "", 1),
    ]
    assert "m0" in text
    assert "4 in the queue" in text
    assert shop.listed("--class", "nack_bad_dst_q", "--limit", "2") == ["m0", "m1"]
    assert shop.listed("--class", "0xC001") == []
    assert shop.listed("--older-than", "1d", "--reason", "NO queue") == ["m0", "m1", "m2"]
    assert shop.listed("--destination", "DIRECT=OS:.\\billing", "--id", "m1") == ["m1"]
    assert shop.listed("--newer-than", "1d", "--reason", "queue") == []
    of_type = shop.folder.run("--json", "deadletters", "list", "--type", "Order").json()
    assert [one["message_id"] for one in of_type["letters"]] == ["m4"]
    assert (of_type["total"], [one["count"] for one in of_type["groups"]]) == (1, [1])
    assert shop.listed("--id", "m2", "--id", "m0") == ["m2", "m0"]


@pytest.mark.behaviour(104)
@pytest.mark.parametrize(
    "name", ["deadxact", "DIRECT=OS:n1\\SYSTEM$;DEADXACT", ".\\XactDeadletter$", "MACHINE"]
)
def test_a_command_accepts_each_spelling_of_a_queue(shop: Shop, name: str) -> None:
    shop.manager.place(a_stored_copy("m1", transactional=True))
    if name == "MACHINE":
        name = f"MACHINE={shop.manager.store.guid_of('n1')};DEADXACT"

    assert shop.listed("--queue", name) == ["m1"]
    assert shop.listed() == []


def test_a_wrong_queue_name_is_a_usage_error_that_shows_the_mistake(shop: Shop) -> None:
    code, text = shop.dead("list", "--queue", "DIRECT=OS:n1\\SYSTEM$;DEADXACTS")

    assert code == 2
    assert "  " + " " * 29 + "^" in text.splitlines()
    assert shop.dead("list", "--queue", ".\\Journal$")[0] == 2
    assert shop.dead("list", "--class", "nothing")[0] == 2


def test_a_dead_letter_is_shown_whole(shop: Shop) -> None:
    shop.manager.place(a_stored_copy("m1", body="größe\x1b[2J".encode(), reason="because"))
    shop.manager.place(a_stored_copy("m2", body=b"\xff"))

    shown = shop.folder.run("--json", "deadletters", "show", "m1", "--body").json()
    code, text = shop.dead("show", "m1", "--body")

    [dead_letter] = shown["letters"]
    assert (dead_letter["body"], dead_letter["class_number"]) == ("größe\x1b[2J", "0x8000")
    assert dead_letter["headers"] == {"name": "m1"}
    assert code == 0
    assert "because" in text
    assert "\x1b" not in text
    raw = shop.folder.run("--json", "deadletters", "show", "m2", "--body").json()
    assert raw["letters"][0]["body_base64"] == base64.b64encode(b"\xff").decode()
    assert shop.dead("show", "m3")[0] == 3


@pytest.mark.parametrize("transactional", [False, True])
def test_a_retried_dead_letter_keeps_its_id_and_leaves_the_queue(
    shop: Shop, transactional: bool
) -> None:
    queue = ["--queue", "deadxact"] if transactional else []
    for number, destination in enumerate(("there", "nowhere")):
        dead_letter = a_stored_copy(f"m{number}", destination, transactional=transactional)
        shop.manager.place(dead_letter)
    shop.session.create_queues(["there"])

    looked = shop.folder.run("--json", "deadletters", "retry", "--all", "--dry-run", *queue)
    before = shop.listed(*queue)
    done = shop.folder.run("--json", "deadletters", "retry", "--all", *queue)

    assert looked.returncode == 0
    assert {one["result"] for one in looked.json()["letters"]} == {"would_retry"}
    assert sorted(before) == ["m0", "m1"]
    assert done.returncode == 1
    assert {one["message_id"]: one["result"] for one in done.json()["letters"]} == {
        "m0": "retried",
        "m1": "unroutable",
    }
    assert shop.listed(*queue) == ["m1"]
    with closing(shop.session.receiver("there", prefetch=1)) as receiver:
        [received] = receiver.receive(1, 2.0)
    assert received.message.id == "m0"


def test_dead_letters_are_read_page_by_page_without_later_arrivals(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeoutmgr.deadletter.queues.AT_ONCE", 1)
    queue = StoredCopyQueue(shop.manager, NodeQueue.DEADLETTER)
    for number in range(3):
        shop.manager.place(a_stored_copy(f"m{number}", kept=OLD + number))
    letters = CopySelection().copies(queue, None)

    first = next(letters)
    shop.manager.place(a_stored_copy("m0", kept=OLD + 3))  # retried, and dead again
    queue.delete(queue.peek(StoredCopyFilter(message_id="m1")))

    assert [first.message.id, *(dead_letter.message.id for dead_letter in letters)] == ["m0", "m2"]


def test_an_export_that_cannot_begin_leaves_the_last_export_unchanged(shop: Shop) -> None:
    shop.manager.place(a_stored_copy("m1"))
    shop.dead("export", "--output", "dead.jsonl")
    (shop.folder.path / "timeoutmgr.db").rename(shop.folder.path / "elsewhere.db")

    code, _ = shop.dead("export", "--output", "dead.jsonl")

    assert code == 4
    assert "m1" in (shop.folder.path / "dead.jsonl").read_text()


def test_a_dead_letter_that_cannot_be_sent_does_not_block_other_dead_letters(shop: Shop) -> None:
    shop.session.create_queues(["there"])
    for name in ("", "m1"):
        shop.manager.place(a_stored_copy(name, "there"))

    done = shop.folder.run("--json", "deadletters", "retry", "--all")

    results = {one["message_id"]: one["result"] for one in done.json()["letters"]}
    assert results == {"": "refused", "m1": "retried"}
    assert (done.returncode, shop.listed()) == (1, [""])


def test_an_id_that_is_given_twice_selects_its_dead_letter_once(shop: Shop) -> None:
    shop.session.create_queues(["there"])
    shop.manager.place(a_stored_copy("m1", "there"))
    twice = ("--id", "m1", "--id", "m1")

    assert shop.listed(*twice) == ["m1"]
    assert "1 would be deleted" in shop.dead("delete", *twice, "--dry-run")[1]
    done = shop.folder.run("--json", "deadletters", "retry", *twice)

    assert [one["result"] for one in done.json()["letters"]] == ["retried"]
    assert done.returncode == 0


def test_a_change_without_a_selection_is_refused(shop: Shop) -> None:
    shop.manager.place(a_stored_copy("m1"))

    for command in ("retry", "delete"):
        assert shop.dead(command)[0] == 2
        assert shop.dead(command, "--all", "--id", "m1")[0] == 2
        assert shop.dead(command, "--id", "m2")[0] == 3
    assert shop.listed() == ["m1"]


def test_a_number_that_is_no_message_class_is_a_usage_error(shop: Shop) -> None:
    code, text = shop.dead("list", "--class", "99999999999999999999")

    assert (code, "is not a message class" in text) == (2, True)


def test_each_age_selects(shop: Shop) -> None:
    shop.manager.place(a_stored_copy("old", kept=OLD))

    assert shop.listed("--newer-than", "1000000d") == ["old"]
    assert shop.listed("--older-than", "1000000d") == []
    assert shop.dead("delete", "--older-than", "0") == (0, "1 deleted\n")


def test_selected_dead_letters_are_deleted_after_a_dry_run(shop: Shop) -> None:
    shop.manager.place(a_stored_copy("old", kept=OLD))
    shop.manager.place(a_stored_copy("new"))

    looked = shop.folder.run(
        "--json", "deadletters", "delete", "--older-than", "30d", "--dry-run"
    ).json()
    still = shop.listed()
    done = shop.folder.run("--json", "deadletters", "delete", "--older-than", "30d").json()

    assert looked == {"chosen": 1, "deleted": 0, "dry_run": True}
    assert sorted(still) == ["new", "old"]
    assert done == {"chosen": 1, "deleted": 1, "dry_run": False}
    assert shop.listed() == ["new"]


def test_exported_dead_letters_are_json_lines_and_stay_stored(shop: Shop) -> None:
    for number in range(3):
        shop.manager.place(a_stored_copy(f"m{number}", body=bytes([number])))

    code, text = shop.dead("export", "--limit", "2")
    shop.dead("export", "--output", "dead.jsonl")

    assert code == 0
    assert [json.loads(line)["message_id"] for line in text.splitlines()] == ["m0", "m1"]
    lines = (shop.folder.path / "dead.jsonl").read_text().splitlines()
    assert [base64.b64decode(json.loads(line)["body_base64"]) for line in lines] == [
        b"\x00",
        b"\x01",
        b"\x02",
    ]
    assert shop.listed() == ["m0", "m1", "m2"]


def test_an_export_of_dead_letters_replaces_no_file_and_leaves_no_empty_file(shop: Shop) -> None:
    shop.manager.place(a_stored_copy("m1"))
    shop.dead("export", "--output", "dead.jsonl")
    before = (shop.folder.path / "dead.jsonl").read_text()

    again, said = shop.dead("export", "--output", "dead.jsonl")
    without_any, _ = shop.dead("export", "--id", "m2", "--output", "empty.jsonl")
    nowhere, why = shop.dead("export", "--output", "missing/dead.jsonl")

    assert (again, without_any, nowhere) == (2, 3, 2)
    assert "--output dead.jsonl is there" in said
    assert "--output missing/dead.jsonl cannot be written" in why
    assert (shop.folder.path / "dead.jsonl").read_text() == before
    assert not (shop.folder.path / "empty.jsonl").exists()


def test_an_export_of_a_journal_into_a_folder_that_is_missing_is_a_usage_error(shop: Shop) -> None:
    ended = shop.folder.run("journal", "export", "--output", "missing/journal.jsonl")

    assert ended.returncode == 2
    assert "--output missing/journal.jsonl cannot be written" in ended.stderr


def test_a_queue_that_is_purged_leaves_dead_letters(shop: Shop) -> None:
    shop.session.create_queues(["asleep"])
    message = a_message("m1")
    given = {**message.headers, "TimeoutManager.Journal": "1"}
    shop.session.send([Outgoing("asleep", type(message)(id="m1", headers=given))])

    looked = shop.folder.run("--json", "deadletters", "purge", "asleep", "--dry-run").json()
    done = shop.folder.run("--json", "deadletters", "purge", "asleep", "--delete-queue").json()
    missing = shop.folder.run("deadletters", "purge", "asleep", "--dry-run")

    assert (looked["messages"], looked["queue_deleted"]) == (1, False)
    assert (done["messages"], done["dead_letters"], done["queue_deleted"]) == (1, 1, True)
    assert shop.listed("--class", "NACK_Q_DELETED") == ["m1"]
    assert shop.session.missing_queues(["asleep"]) == ["asleep"]
    assert missing.returncode == 4, missing.stdout


def test_journals_are_listed_and_deleted(shop: Shop) -> None:
    copy = a_stored_copy("m1", "billing", journal=JournalLevel.JOURNAL, message_class=0x4000)
    shop.manager.journal(copy, target=False)
    shop.manager.journal(copy, target=True)

    own = shop.folder.run("--json", "journal", "list").json()
    queues = shop.folder.run("--json", "journal", "list", "--queue", "billing").json()
    deleted = shop.folder.run("--json", "journal", "delete", "--all").json()

    assert own["total"] == queues["total"] == 1
    assert own["letters"][0]["class"] == "ACK_RECEIVE"
    assert deleted["deleted"] == 1
    assert (
        shop.folder.run("--json", "journal", "list", "--queue", ".\\billing;JOURNAL").json()[
            "total"
        ]
        == 1
    )
    assert shop.folder.run("journal", "show", "m1").returncode == 3
    assert shop.folder.run("journal", "list", "--queue", "deadxact").returncode == 0


def test_without_the_feature_the_remedy_is_named(folder: Folder) -> None:
    assert folder.run("install").returncode == 0

    done = folder.run("deadletters", "list")

    assert done.returncode == 4
    assert "enable the feature 'dead-letter-queues'" in done.stderr


def test_status_and_doctor_report_the_status_of_the_node(shop: Shop) -> None:
    before = shop.folder.run("--json", "doctor")
    shop.manager.place(a_stored_copy("m1", kept=OLD, reason="no queue"))
    shop.manager.place(a_stored_copy("m2", kept=OLD + 1, transactional=True))
    own = a_stored_copy("m3", kept=OLD - 1, transactional=True, application_queue="sales.dead")
    shop.manager.place(own)
    shop.manager.journal(a_stored_copy("m4", journal=JournalLevel.JOURNAL), target=False)

    status = shop.folder.run("--json", "status").json()["dead_letters"]
    text = shop.folder.run("status").stdout
    after = shop.folder.run("--json", "doctor")
    shop.folder.variables["TIMEOUTMGR_DEAD_LETTER_QUEUES_DEAD_LETTER_QUOTA"] = "1"
    full = shop.folder.run("--json", "doctor")

    assert before.returncode == after.returncode == 0
    assert _found(before, "dead letters")["text"] == "there are none"
    assert status["node"] == "n1"
    since = from_micros(OLD).isoformat()
    assert status["deadletter"] == {"count": 1, "oldest": since}
    assert (status["deadxact"]["count"], status["of_applications"]["count"]) == (1, 1)
    assert (status["awaiting"], status["journal"]) == (0, 1)
    assert status["bytes"]["dead_letters"]["quota"] is None
    assert 0 < status["bytes"]["dead_letters"]["used"] < status["bytes"]["node"]["used"]
    assert "dead letters of node n1" in text
    lying = _found(after, "dead letters")
    assert lying["level"] == "warn"
    assert lying["text"].startswith("3 dead letters, the oldest since 2023-11-14T22:13:19")
    assert full.returncode == 1
    assert _found(full, "quota of dead letters")["level"] == "fail"


def test_a_node_that_is_not_installed_is_reported_with_its_remedy(shop: Shop) -> None:
    shop.folder.variables["TIMEOUTMGR_DEAD_LETTER_QUEUES_NODE"] = "n2"

    status, doctor = shop.folder.run("status"), shop.folder.run("--json", "doctor")

    assert status.returncode != 0
    assert "run `timeoutmgr install`" in status.stderr
    assert doctor.returncode == 1
    assert "node 'n2' has no dead-letter queues" in _found(doctor, "dead-letter queues")["text"]


def _found(ended: Any, check: str) -> dict[str, str]:
    [found] = [each for each in ended.json()["findings"] if each["check"] == check]
    return dict(found)


def test_a_dead_letter_is_not_retried_into_a_forbidden_queue(shop: Shop) -> None:
    shop.session.create_queues(["victim.TimeoutsDispatcher"])
    shop.manager.place(a_stored_copy("m1", "victim.TimeoutsDispatcher"))

    done = shop.folder.run("--json", "deadletters", "retry", "--all")

    assert done.returncode == 1
    assert [one["result"] for one in done.json()["letters"]] == ["not_allowed"]
    assert shop.listed() == ["m1"]
