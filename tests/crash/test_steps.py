"""No step has two side effects without a crash point between them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

from tests.crash.effects import reads_of, uncovered
from tests.house import trees
from timeoutmgr.crashpoints import POINTS

ROOT: Final = Path(__file__).parents[2]
STEPS: Final = (
    "satellites/poller.py",
    *(f"satellites/timeout_manager/{name}.py" for name in ("timeouts", "dispatcher")),
    *(f"satellites/delayed_store/{name}.py" for name in ("receiver", "adapter")),
    *(f"satellites/delivery/{name}.py" for name in ("dispatch", "unroutable")),
    *(
        f"timeoutmgr/deadletter/{name}.py"
        for name in ("policies", "manager", "service", "acknowledgements", "expiry")
    ),
    *(f"timeoutmgr/sender/{name}.py" for name in ("sender", "window")),
    "timeoutmgr/endpoint/handlers.py",
    *(f"timeoutmgr/transport/{name}.py" for name in ("pump", "work", "error_queue")),
    *(
        f"timeoutmgr/transport/amqp/{name}.py"
        for name in ("dispatch", "session", "topology", "foreign")
    ),
    *(
        f"timeoutmgr/transport/sql/{name}.py"
        for name in ("leases", "session", "receiver", "queues", "expiry", "foreign", "split")
    ),
    *(
        f"persistence/sql/{name}.py"
        for name in (
            *("insert", "batch_writes", "claim/claimer", "claim/rows", "context"),
            *("dispatch/lock", "dispatch/outcomes", "commands", "rows", "labels", "mass_cancel"),
            *("row_changes", "pauses", "audit", "bulk_runs", "load_counts"),
            *("maintenance", "partitions/conversion", "partitions/upkeep"),
            *("migration/ledger", "migration/source", "migration/target"),
        )
    ),
    *(
        f"timeoutmgr/migration/{name}.py"
        for name in ("run", "batch_step", "loops", "levels/drain", "foreign/table")
    ),
    "persistence/sql/schedules.py",
    *(f"timeoutmgr/recurrence/{name}.py" for name in ("changes", "task")),
    "persistence/delayed/store.py",
    "timeoutmgr/features/delayed_delivery.py",
    "timeoutmgr/endpoint/installation.py",
    "timeoutmgr/database/upgrade.py",
)

_REFUSED = "only what was confirmed is a side effect, and the branch for that has the point"
_MODE_NONE = "at most once is what the mode 'none' promises: a crash after the ack loses"
_WITHIN = "the point is in the function called: leases.gone_freed, leases.written"
_NOTHING = "the first of them changed nothing, or this line would not be reached"

_NOT_BURIED = "what is not buried has changed nothing, and what raised is undone"
_LOCKED = "the first of them reads and locks, and whoever dies lets go of the locks"
_CALLED = "the point is in the function called: handler.sent"
_IN_STEP = "the points are in the step called: delayed.stored, delayed.sent_on"
_REFUSED_AGAIN = "nothing was moved, and whoever takes the run over refuses it for the same reason"
_ALONE = "as between two messages of one batch: what was sent is repeated, the rest is sent"
_GIVEN_BACK = "a crash gives back what is in hand just the same"
_IN_PROCESS = "what it notifies is in this process, and dies with it"
_WITH_THE_RUN = "in the transaction that ends the run: a crash undoes all of them"
_TOGETHER = "in the transaction of the send or of the creation: a crash undoes all of them"
_PARTS = "parts of one insert, in one transaction: a crash undoes all of them"

_PLAN = "between two pages of a plan: a plan that dies is never applied"

_PUMP = "timeoutmgr/transport/pump.py"
_PUMP_POLICY = "timeoutmgr/deadletter/policies.py"
_RECEIVER = "timeoutmgr/transport/sql/receiver.py"
_STORE = "persistence/sql"

_QUEUE_BY_QUEUE = "as between two queues of one call: the next installation creates the rest"
_EACH_DISPATCH = "each dispatch declares what its route asks for, if it is not there"

ALLOWED: Final = {
    (
        "timeoutmgr/transport/amqp/foreign.py:_declare",
        "queue_declare",
        "queue_declare",
    ): _EACH_DISPATCH,
    ("timeoutmgr/transport/sql/split.py:_send_one_here", "send", "send"): _ALONE,
    (f"{_STORE}/mass_cancel.py:_cancel", "execute", "free"): _LOCKED,
    (f"{_STORE}/mass_cancel.py:_cancel", "free", "free"): _LOCKED,
    ("timeoutmgr/deadletter/manager.py:work", "execute", "execute"): _PARTS,
    (
        "timeoutmgr/endpoint/installation.py:create_queues",
        "create_queues",
        "create_queues",
    ): _QUEUE_BY_QUEUE,
    ("satellites/delayed_store/receiver.py:_put", "put", "put"): _IN_STEP,
    ("satellites/delivery/dispatch.py:__call__", "move", "close"): _REFUSED,
    ("timeoutmgr/deadletter/policies.py:_place_timeout", "dead_letter", "dead_letter"): _NOT_BURIED,
    ("timeoutmgr/deadletter/policies.py:_place_timeout", "send_each", "dead_letter"): _NOT_BURIED,
    ("timeoutmgr/deadletter/policies.py:_place_timeout", "notify", "dead_letter"): _ALONE,
    (f"{_PUMP_POLICY}:send", "send", "after_sending"): _CALLED,
    (f"{_PUMP_POLICY}:divert", "dead_letter", "ack"): _NOT_BURIED,
    (f"{_PUMP_POLICY}:divert", "try_send", "ack"): _NOT_BURIED,
    (f"{_PUMP}:_move_to_error", "ack", "divert"): _MODE_NONE,
    (f"{_PUMP}:_move_to_error", "divert", "divert"): _NOT_BURIED,
    (f"{_PUMP}:_move_to_error", "release", "divert"): _GIVEN_BACK,
    (f"{_PUMP}:pump_once", "divert", "ack"): _NOT_BURIED,
    (f"{_PUMP}:_replace", "divert", "send"): _NOT_BURIED,
    ("satellites/delayed_store/adapter.py:_give_up", "move_to_error_queue", "close"): _REFUSED,
    (
        "satellites/timeout_manager/dispatcher.py:_give_up",
        "move_to_error_queue",
        "move_to_error_queue",
    ): _REFUSED,
    (
        "satellites/delayed_store/adapter.py:_defer",
        "increment_failure_count",
        "increment_failure_count",
    ): _NOTHING,
    ("timeoutmgr/transport/error_queue.py:_move_smaller", "send", "send"): _ALONE,
    ("timeoutmgr/transport/work.py:send_each", "send_isolated", "send_isolated"): _ALONE,
    ("timeoutmgr/transport/work.py:send_each", "start_isolated", "send_isolated"): _NOTHING,
    (f"{_PUMP}:pump_once", "ack", "ack"): _MODE_NONE,
    (f"{_PUMP}:_replace", "ack", "send"): _MODE_NONE,
    (f"{_PUMP}:_leave", "ack", "release"): _GIVEN_BACK,
    (f"{_PUMP}:_leave", "divert", "release"): _GIVEN_BACK,
    (f"{_PUMP}:_leave", "release", "release"): _GIVEN_BACK,
    (f"{_PUMP}:pump_once", "release", "ack"): _GIVEN_BACK,
    (f"{_PUMP}:_replace", "release", "send"): _GIVEN_BACK,
    (f"{_RECEIVER}:_lease", "free_dead_owners", "free_dead_owners"): _WITHIN,
    (f"{_RECEIVER}:_leased_rows", "free_dead_owners", "lease_rows"): _WITHIN,
    (f"{_RECEIVER}:_forget_released", "release", "notify"): _IN_PROCESS,
    (f"{_RECEIVER}:_lease", "lease_rows", "free_dead_owners"): _NOTHING,
    ("timeoutmgr/transport/sql/queues.py:_insert_each", "execute_many", "execute_many"): _PARTS,
    ("timeoutmgr/transport/sql/queues.py:_insert_each", "execute", "execute_many"): _TOGETHER,
    ("timeoutmgr/transport/sql/queues.py:_create", "execute", "execute"): _TOGETHER,
    ("timeoutmgr/transport/sql/queues.py:_remove_left", "execute", "execute"): _TOGETHER,
    ("timeoutmgr/transport/sql/session.py:put", "execute", "execute"): _PARTS,
    (f"{_STORE}/pauses.py:_pause", "execute", "execute"): _NOTHING,
    (f"{_STORE}/bulk_runs.py:_changed", "execute_many", "run"): _PLAN,
    (f"{_STORE}/bulk_runs.py:work", "execute_many", "insert_rows"): _PLAN,
    ("timeoutmgr/database/upgrade.py:create_missing", "create_table", "execute"): _PARTS,
    (f"{_STORE}/insert.py:_insert_keys", "insert_keys", "insert_keys"): _NOTHING,
    (f"{_STORE}/claim/claimer.py:_may_be_dropped", "flag_free_rows", "flag_free_rows"): _NOTHING,
    (f"{_STORE}/claim/claimer.py:_drop_ended", "flag_free_rows", "remove_claims"): _NOTHING,
    (f"{_STORE}/claim/claimer.py:work", "flag_free_rows", "remove_claims"): _NOTHING,
    ("timeoutmgr/migration/run.py:begin", "shut", "move_run"): _REFUSED_AGAIN,
    ("timeoutmgr/migration/batch_step.py:claim_batch", "claim", "claim"): _NOTHING,
    (f"{_STORE}/migration/ledger.py:put", "execute", "execute"): _NOTHING,
    (f"{_STORE}/migration/ledger.py:drop", "execute", "execute"): _WITH_THE_RUN,
    ("timeoutmgr/transport/sql/leases.py:_give_back", "release", "notify"): _IN_PROCESS,
    ("timeoutmgr/transport/sql/leases.py:_give_back", "notify", "release"): _GIVEN_BACK,
    (f"{_STORE}/commands.py:cancel_in", "insert_missing", "execute"): _NOTHING,
    (f"{_STORE}/load_counts.py:_request", "execute", "insert_missing"): _NOTHING,
    (f"{_STORE}/load_counts.py:_write", "execute", "insert_rows"): _PARTS,
    (f"{_STORE}/maintenance.py:_write_heartbeat", "execute", "insert_missing"): _NOTHING,
    (f"{_STORE}/maintenance.py:_remove", "execute", "execute_many"): _LOCKED,
}
"""Pairs of side effects that need no point between them, and why."""


def test_every_step_has_a_point_between_any_two_side_effects() -> None:
    found = {}
    reads = reads_of([ROOT / "timeoutmgr/transport/sql/statements.py"])
    reads = frozenset(
        name.replace("self.", made)
        for name in reads
        for made in ("self._statements.", "statements.")
    )
    reads |= {"context.claims"}  # a select, made once for the store
    for step in STEPS:
        for function, before, after in uncovered(ROOT / step, reads):
            place = f"{step}:{function}", before[1], after[1]
            found[place] = f"{step}, lines {before[0]} and {after[0]}, in {function}: {place[1:]}"

    assert [text for place, text in found.items() if place not in ALLOWED] == []
    assert set(ALLOWED) - set(found) == set(), "these need no allowance any more"


@pytest.mark.parametrize(
    ("body", "covered"),
    [
        ("one.send(1); one.ack(1)", False),
        ("one.send(1); reach('a'); one.ack(1)", True),
        ("one.send(1); call(1); one.ack(1)", False),
        ("one.send(1) if call() else one.ack(1)", True),
        ("if call(): return one.send(1)\n    one.ack(1)", True),
        ("for each in 1, 2: one.ack(each)", False),
        ("for each in 1, 2: one.ack(each); reach('a')", True),
        ("[one.ack(each) for each in (1, 2)]", False),
        ("try: one.send(1)\n    except OSError: one.ack(1)", False),
        ("one.execute(update(1)); one.execute(delete(1))", False),
        ("one.execute(select(1)); one.execute(delete(1))", True),
        ("helper(); one.ack(1)", False),
        ("one.run(helper); one.ack(1)", False),
        ("one.run(lambda: one.send(1)); one.ack(1)", False),
        ("window.close(); one.ack(1)", True),
        ("taken.close(); one.ack(1)", False),
    ],
)
def test_two_side_effects_in_a_row_are_found(body: str, covered: bool, tmp_path: Path) -> None:
    source = tmp_path / "step.py"
    source.write_text(f"def helper(): one.send(1)\n\ndef step():\n    {body}\n")

    assert (list(uncovered(source, frozenset())) == []) is covered


def test_every_registered_point_is_somewhere_and_every_point_is_registered() -> None:
    reached = {
        constant.value
        for folder in ("timeoutmgr", "satellites", "persistence")
        for path in (ROOT / folder).rglob("*.py")
        for call in ast.walk(trees()[path])
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if call.func.id in ("reach", "StepPoints")
        for constant in ast.walk(call)
        if isinstance(constant, ast.Constant)
    }

    assert reached == set(POINTS)
