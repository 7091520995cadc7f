"""Placing, peeking, receiving, deleting and moving, on every database."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import event

from tests.deadletter.making import Nodes, a_stored_copy, ids, queues
from tests.persistence.explaining import rows_read
from tests.support.clock import START
from timeoutmgr.contracts.dead_letters import JournalLevel, MessageClass
from timeoutmgr.database import Database
from timeoutmgr.deadletter.feature import DeadLetterQueues, InstalledNode
from timeoutmgr.deadletter.manager import QueueManager, Quotas
from timeoutmgr.deadletter.node_status import read_node_status
from timeoutmgr.deadletter.queues import StoredCopyFilter, StoredCopyQueue
from timeoutmgr.deadletter.store import DeadLetterStore, checked_node
from timeoutmgr.deadletter.stored_copy import NodeQueue, Placement
from timeoutmgr.deadletter.tables import to_row
from timeoutmgr.errors import ConfigurationError, MessageRejected, NodeFull, SchemaMissing
from timeoutmgr.message.message import Message

BOTH = JournalLevel.BOTH
SECOND = 1_000_000


def test_a_placed_dead_letter_is_found_unchanged(nodes: Nodes) -> None:
    manager = nodes.manager()
    dead, xact, journal = queues(manager)
    copy = a_stored_copy(
        "m ä '; DROP",
        "billing ✓",
        body=b"\x00\xff" * 1000,
        sent=START - 5,
        time_to_reach_queue=7,
        time_to_be_received=9,
        hops=3,
        attempts=5,
        reason="no queue 'billing ✓'\n\\N",
    )

    assert manager.place(copy) is Placement.PLACED

    assert dead.peek() == [copy]
    assert (dead.count(), dead.oldest(), xact.count(), journal.count()) == (1, START, 0, 0)


@pytest.mark.behaviour(104)
def test_a_message_dies_in_the_queue_of_its_kind(nodes: Nodes) -> None:
    manager = nodes.manager()
    dead, xact, _ = queues(manager)
    own = StoredCopyQueue(manager, NodeQueue.DEADXACT, "sales.dead")

    manager.place(a_stored_copy("plain"))
    manager.place(a_stored_copy("xact", transactional=True))
    manager.place(a_stored_copy("own", transactional=True, application_queue="sales.dead"))

    assert (ids(dead), ids(xact), ids(own)) == (["plain"], ["xact"], ["own"])


def test_the_status_of_a_node_counts_each_of_its_queues(nodes: Nodes) -> None:
    manager = nodes.manager()
    manager.place(a_stored_copy("plain"))
    manager.place(a_stored_copy("xact", transactional=True))
    manager.place(a_stored_copy("own", transactional=True, application_queue="sales.dead"))
    manager.place(a_stored_copy("other", transactional=True, application_queue="billing.dead"))

    found = read_node_status(manager)

    assert [found.deadletter.count, found.deadxact.count, found.own.count] == [1, 1, 2]
    assert (found.dead.count, found.dead.oldest) == (4, START)


def test_without_the_level_nothing_is_left(nodes: Nodes) -> None:
    manager = nodes.manager()

    for level in (JournalLevel.NONE, JournalLevel.JOURNAL):
        assert manager.place(a_stored_copy(journal=level)) is Placement.NOT_ASKED

    assert [queue.count() for queue in queues(manager)] == [0, 0, 0]


def test_placed_twice_it_lies_there_once_with_its_last_known_status(nodes: Nodes) -> None:
    manager = nodes.manager()
    dead, xact, _ = queues(manager)

    manager.place(a_stored_copy())
    manager.place(a_stored_copy(transactional=True, message_class=MessageClass.NACK_Q_PURGED))

    assert dead.peek() == []
    assert [one.message_class for one in xact.peek()] == [MessageClass.NACK_Q_PURGED]


def test_one_id_for_two_destinations_is_two_letters(nodes: Nodes) -> None:
    manager = nodes.manager()

    manager.place(a_stored_copy("m", "billing"))
    manager.place(a_stored_copy("m", "Billing"))

    assert [one.destination for one in queues(manager)[0].peek()] == ["Billing", "billing"]


def test_each_node_has_its_own_queues(nodes: Nodes) -> None:
    one, other = nodes.manager("a"), nodes.manager("b")

    one.place(a_stored_copy("m1"))
    other.place(a_stored_copy("m1"))
    with queues(one)[0].receive() as copy:
        assert copy is not None

    assert (queues(one)[0].count(), queues(other)[0].count()) == (0, 1)


def test_receive_returns_the_oldest_copy_and_removes_it_only_on_success(nodes: Nodes) -> None:
    manager = nodes.manager()
    dead = queues(manager)[0]
    for number in (2, 1, 3):
        manager.place(a_stored_copy(f"m{number}", kept=START + number))

    with suppress(RuntimeError), dead.receive() as copy:
        assert copy is not None
        raise RuntimeError(copy.message.id)
    with dead.receive() as copy:
        assert copy is not None
        first = copy.message.id

    assert first == "m1"
    assert ids(dead) == ["m2", "m3"]


def test_of_an_empty_queue_nothing_is_received(nodes: Nodes) -> None:
    with queues(nodes.manager())[0].receive() as copy:
        assert copy is None


def test_two_concurrent_receives_get_different_dead_letters(nodes: Nodes) -> None:
    manager = nodes.manager()
    dead = queues(manager)[0]
    for number in range(20):
        manager.place(a_stored_copy(f"m{number}"))
    got: list[str] = []

    def receive_ten() -> None:
        for _ in range(10):
            with dead.receive() as copy:
                assert copy is not None
                got.append(copy.message.id)

    threads = [threading.Thread(target=receive_ten) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(got) == sorted(f"m{number}" for number in range(20))
    assert dead.count() == 0


def test_placing_in_a_transaction_ends_with_it(nodes: Nodes) -> None:
    manager = nodes.manager()
    dead = queues(manager)[0]

    with suppress(RuntimeError), nodes.database.begin() as connection:
        manager.place(a_stored_copy("undone"), transaction=connection)
        raise RuntimeError
    with nodes.database.begin() as connection:
        manager.place(a_stored_copy("done"), transaction=connection)

    assert ids(dead) == ["done"]
    assert _usage(nodes, manager.node)["letters_count"] == 1


def test_many_letters_are_walked_through_in_order_page_by_page(nodes: Nodes) -> None:
    manager = nodes.manager()
    for number in range(7):
        manager.place(a_stored_copy(f"m{number}", kept=START + number // 3))
    dead = queues(manager)[0]
    first = dead.peek(limit=3)

    rest = dead.peek(after=(first[-1].kept, *first[-1].key))

    assert [one.message.id for one in [*first, *rest]] == [f"m{n}" for n in range(7)]
    assert [one.message.id for one in dead.every()] == [f"m{n}" for n in range(7)]


def test_the_next_page_begins_in_the_index_and_not_at_the_first_dead_letter(
    store_of: Callable[[str], DeadLetterStore], unique: str
) -> None:
    nodes = Nodes(store_of("postgres"), unique)
    dead, plans = queues(nodes.manager())[0], list[str]()

    def explain(_connection: Any, cursor: Any, statement: str, values: Any, *_more: Any) -> None:
        settings = ("enable_seqscan", "enable_bitmapscan")  # a small table needs no index
        for name in settings:
            cursor.execute(f"SET {name} = off")
        cursor.execute(f"EXPLAIN {statement}", values)
        plans.extend(line for [line] in cursor.fetchall())
        for name in settings:
            cursor.execute(f"RESET {name}")

    event.listen(nodes.database.engine, "before_cursor_execute", explain)
    try:
        dead.peek(after=(START, "m1", "billing"))
    finally:
        event.remove(nodes.database.engine, "before_cursor_execute", explain)

    assert any("Index Cond" in line and f"(kept >= '{START}'" in line for line in plans), plans


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
@pytest.mark.parametrize("box", [NodeQueue.JOURNAL, None])
def test_a_page_of_many_copies_reads_few_others(
    store_of: Callable[[str], DeadLetterStore], unique: str, kind: str, box: NodeQueue | None
) -> None:
    nodes = Nodes(store_of(kind), unique)
    manager, engine = nodes.manager(), nodes.database.engine
    queue = StoredCopyQueue(manager, box)
    copies = [a_stored_copy(f"m{number}", kept=START + number) for number in range(1_000)]
    rows = [to_row(manager.node, copy) | {"target": 0} for copy in copies]
    names = queue._table.c.keys()
    rows = [{name: value for name, value in row.items() if name in names} for row in rows]
    nodes.database.run(lambda connection: connection.execute(queue._table.insert(), rows))
    analyze = "ANALYZE" if kind == "postgres" else "ANALYZE TABLE"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"{analyze} {queue._table.name}")

    with rows_read(engine, "dead_") as read:
        page = queue.peek(limit=10, after=(START + 500, "m500", "billing"))

    assert [one.message.id for one in page] == [f"m{n}" for n in range(501, 511)]
    assert max(read.values()) < 300


def test_letters_are_chosen_by_class_reason_age_destination_and_id(nodes: Nodes) -> None:
    manager = nodes.manager()
    dead = queues(manager)[0]
    manager.place(a_stored_copy("m1", "a", kept=START, reason="No queue 'a'"))
    manager.place(
        a_stored_copy("m2", "b", kept=START + 1, message_class=MessageClass.NACK_Q_PURGED)
    )
    manager.place(a_stored_copy("m3", "b", kept=START + 2, reason="100 % full"))

    def chosen(**which: object) -> list[str]:
        found = StoredCopyFilter(**which)  # type: ignore[arg-type]  # one of each kind
        assert dead.count(found) == len(dead.peek(found))
        return [copy.message.id for copy in dead.peek(found)]

    assert chosen(destination="b") == ["m2", "m3"]
    assert chosen(message_class=MessageClass.NACK_BAD_DST_Q) == ["m1", "m3"]
    assert chosen(reason="no QUEUE") == ["m1"]
    assert chosen(reason="0 % f") == ["m3"]
    assert chosen(reason="n_ q%") == []
    assert chosen(kept_from=START + 1, kept_before=START + 2) == ["m2"]
    assert chosen(message_id="m1", destination="a") == ["m1"]


def test_groups_count_by_class_and_reason(nodes: Nodes) -> None:
    manager = nodes.manager()
    for number in range(3):
        manager.place(a_stored_copy(f"m{number}", reason="no queue", kept=START + number))
    manager.place(
        a_stored_copy("m3", reason="full", message_class=MessageClass.NACK_Q_EXCEED_QUOTA)
    )

    found = queues(manager)[0].groups()

    assert [(each.reason, each.count, each.oldest, each.newest) for each in found] == [
        ("no queue", 3, START, START + 2),
        ("full", 1, START, START),
    ]


def test_a_dead_letter_queue_over_its_quota_discards_the_new_copy(nodes: Nodes) -> None:
    manager = nodes.manager(dead_letters=3000)
    dead = queues(manager)[0]

    placed = [manager.place(a_stored_copy(f"m{n}", body=b"x" * 1400)) for n in range(3)]
    again = manager.place(a_stored_copy("m0", body=b"y" * 1400))

    assert placed == [Placement.PLACED, Placement.PLACED, Placement.OVER_QUOTA]
    assert again is Placement.PLACED
    assert sorted(ids(dead)) == ["m0", "m1"]


def test_over_its_quota_the_journal_takes_no_copy(nodes: Nodes) -> None:
    manager = nodes.manager(journal=1000)

    copied = [
        manager.journal(a_stored_copy(f"m{n}", body=b"x" * 600), target=False) for n in range(2)
    ]

    assert copied == [Placement.PLACED, Placement.OVER_QUOTA]
    assert ids(queues(manager)[2]) == ["m0"]


def test_a_full_node_refuses_every_copy_and_names_the_remedy(nodes: Nodes) -> None:
    manager = nodes.manager(node=2000)
    manager.place(a_stored_copy("m1", body=b"x" * 1500))

    with pytest.raises(NodeFull, match="timeoutmgr deadletters delete"):
        manager.place(a_stored_copy("m2", body=b"x" * 1500))
    with pytest.raises(NodeFull):
        manager.keep([a_stored_copy("m3", transactional=True, body=b"x" * 1500)], None, None)

    assert (
        manager.journal(a_stored_copy("m4", body=b"x" * 1500), target=False) is Placement.OVER_QUOTA
    )
    assert queues(manager)[0].delete([a_stored_copy("m1")]) == 1
    assert manager.place(a_stored_copy("m2", body=b"x" * 1500)) is Placement.PLACED


def test_a_refused_copy_leaves_the_dead_letter_that_it_was_to_replace(nodes: Nodes) -> None:
    manager = nodes.manager(node=2000)
    manager.place(a_stored_copy("m1", transactional=True, body=b"x" * 1500))
    before = _usage(nodes, manager.node)
    larger = a_stored_copy("m1", transactional=True, body=b"x" * 2500)

    with nodes.database.begin() as connection, suppress(NodeFull):
        manager.keep([larger], None, None, transaction=connection)

    assert ids(queues(manager)[1]) == ["m1"]
    assert _usage(nodes, manager.node) == before


def test_the_journals_of_queues_are_apart_from_the_nodes_own(nodes: Nodes) -> None:
    manager = nodes.manager()
    copy = a_stored_copy("m1", "billing", message_class=MessageClass.ACK_RECEIVE)

    manager.journal(copy, target=False)
    manager.journal(copy, target=True)
    manager.journal(copy, target=True)

    target = StoredCopyQueue(manager, NodeQueue.JOURNAL, "billing")
    assert ids(target) == ["m1"]
    assert ids(queues(manager)[2]) == ["m1"]
    assert target.delete(target.peek()) == 1
    assert ids(queues(manager)[2]) == ["m1"]


def test_deleting_counts_its_copies_and_spares_moved_copies(nodes: Nodes) -> None:
    manager = nodes.manager()
    dead, xact, _ = queues(manager)
    manager.place(a_stored_copy("m1"))
    seen = dead.peek()
    manager.place(a_stored_copy("m1", transactional=True))

    assert dead.delete(seen) == 0
    assert xact.delete(xact.peek()) == 1
    assert xact.delete(seen) == 0


def test_text_that_no_database_stores_is_refused(nodes: Nodes) -> None:
    manager = nodes.manager()
    lone = a_stored_copy("m1", reason="\ud800 \0")

    for wrong in (a_stored_copy("m\0"), a_stored_copy("m", "\ud800"), a_stored_copy("m" * 256)):
        with pytest.raises(MessageRejected):
            manager.place(wrong)

    for key in (("m\0", "billing"), ("m1", "\ud800")):
        with pytest.raises(MessageRejected, match="plain text"):
            manager.acknowledge(key, MessageClass.ACK_RECEIVE)

    assert manager.place(lone) is Placement.PLACED
    assert queues(manager)[0].peek()[0].reason == "\\ud800 \\0"


def test_a_copy_that_no_packet_carries_is_rejected_and_nothing_changes(
    store_of: Callable[[str], DeadLetterStore], mysql_url: str, unique: str
) -> None:
    store_of("mysql")
    database = Database(mysql_url)
    event.listen(
        database.engine, "connect", lambda _, record: record.info.update(timeoutmgr_packet=100_000)
    )
    manager = Nodes(DeadLetterStore(database), unique).manager()
    manager.place(a_stored_copy("m1"))
    large = a_stored_copy("m1", body=bytes(50_000))

    for refused in (
        lambda: manager.place(large),
        lambda: manager.keep([a_stored_copy("m2"), large], None, None),
        lambda: manager.journal(large, target=False),
    ):
        with pytest.raises(MessageRejected, match="max_allowed_packet"):
            refused()

    assert [ids(queue) for queue in queues(manager)] == [["m1"], [], []]
    database.dispose()


def test_a_node_that_was_not_installed_is_refused_with_its_name(nodes: Nodes) -> None:
    manager = nodes.manager()
    stranger = type(manager)(store=nodes.store, node="stranger-" + manager.node)

    with pytest.raises(SchemaMissing, match="timeoutmgr install"):
        stranger.place(a_stored_copy())


def test_a_node_keeps_the_guid_it_was_given_first(nodes: Nodes) -> None:
    node = nodes.manager().node
    first = nodes.store.guid_of(node)

    assert nodes.store.add_node(node, "another") == first
    assert nodes.store.nodes()[node] == first


def test_many_add_one_node_at_once(nodes: Nodes) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(nodes.store.add_node("at-once", str(n))))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len(set(found)) == 1


def test_the_tables_match_the_columns_of_the_queries(nodes: Nodes) -> None:
    store = nodes.store
    with store.database.read() as connection:
        ours = {table.name for table in store.tables.metadata.tables.values()}
        context = MigrationContext.configure(
            connection,
            opts={
                "include_name": lambda name, kind, _: kind != "table" or name in ours,
                "compare_type": False,
            },
        )
        assert compare_metadata(context, store.tables.metadata) == []
    store.check()


def test_without_installation_the_command_is_named(sqlite_url: str) -> None:
    store = DeadLetterStore(sqlite_url)

    with pytest.raises(SchemaMissing, match="timeoutmgr install"):
        store.check()
    assert "CREATE TABLE timeoutmgr_dead_letters" in store.ddl()


@pytest.mark.parametrize("node", ["", "a b", "a\\b", "n;DEADXACT", "x" * 65, "ü", "a\n", "a,b"])
def test_a_node_has_a_plain_name(node: str) -> None:
    with pytest.raises(ConfigurationError, match="a node's id"):
        checked_node(node)


def test_a_quota_is_no_negative_number() -> None:
    with pytest.raises(ConfigurationError, match="quota journal"):
        Quotas(journal=-1)


@pytest.mark.parametrize("interval", [timedelta(0), timedelta(days=365_000)])
def test_a_sweep_interval_is_over_0_and_at_most_a_year(interval: timedelta) -> None:
    with pytest.raises(ConfigurationError, match="sweep_interval is over 0"):
        DeadLetterQueues(node="n1", sweep_interval=interval)


def test_only_the_queue_manager_inserts_stored_copies() -> None:
    folder = Path(__file__).parents[2] / "timeoutmgr" / "deadletter"
    inserting = {
        path.name
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("insert", "update")
    }
    public = {name for name in dir(StoredCopyQueue) if not name.startswith("_")}

    assert inserting == {"manager.py", "store.py"}  # the store: its nodes
    assert public == {"manager", "kind", "name", "peek", "every", "receive", "delete"} | {
        "count",
        "oldest",
        "newest",
        "groups",
        "holds",
    }


def _usage(nodes: Nodes, node: str) -> dict[str, int]:
    table = nodes.store.tables.nodes
    with nodes.database.read() as connection:
        row = connection.execute(table.select().where(table.c.node == node)).one()
    return {name: value for name, value in row._mapping.items() if "_" in name}


def test_an_empty_message_counts_too(nodes: Nodes) -> None:
    manager = nodes.manager()
    copy = a_stored_copy("empty")
    bare = type(copy)(
        message=Message(id="bare"),
        destination="q",
        message_class=MessageClass.NACK_PURGED,
        kept=START,
        journal=JournalLevel.DEADLETTER,
    )

    manager.place(bare)
    manager.place(bare)

    assert ids(queues(manager)[0]) == ["bare"]
    assert _usage(nodes, manager.node)["letters_count"] == 1


def test_the_printed_statements_install_a_node(nodes: Nodes, unique: str) -> None:
    store = DeadLetterStore(nodes.database, prefix=f"{unique}_")
    node = InstalledNode(QueueManager(store=store, node="n1"))

    with nodes.database.begin() as connection:
        for statement in node.ddl().split(";\n"):
            if statement.strip() and statement.strip().upper() not in ("BEGIN", "COMMIT"):
                connection.exec_driver_sql(statement)

    node.check()
    assert node.manager.place(a_stored_copy()) is Placement.PLACED


def test_deleting_an_old_dead_letter_spares_its_new_copy(nodes: Nodes) -> None:
    manager = nodes.manager()
    dead, _, _ = queues(manager)
    manager.place(a_stored_copy())
    [seen] = dead.peek()
    manager.place(a_stored_copy(kept=START + 1))

    deleted = dead.delete([seen])

    assert (deleted, ids(dead)) == (0, ["m1"])


def test_reasons_that_differ_by_the_message_alone_are_one_group(nodes: Nodes) -> None:
    manager = nodes.manager()
    for name in ("one", "two"):
        manager.place(a_stored_copy(name, reason=f"message {name!r} goes in circles"))

    [group] = queues(manager)[0].groups()

    assert (group.count, group.reason) == (2, "message '…' goes in circles")
