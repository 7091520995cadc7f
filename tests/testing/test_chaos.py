from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.services.private import PrivateServer
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.testing.chaos import (
    ChaosFailed,
    ChaosSettings,
    Fault,
    FaultKind,
    plan,
    run_chaos,
)
from timeoutmgr.testing.chaos.connections import PostgresCutter, ProxyCutter, cutter, ports_of
from timeoutmgr.testing.chaos.deliveries import Delivery
from timeoutmgr.testing.chaos.incidents import SERVERS, Incident
from timeoutmgr.testing.chaos.judge import Evidence, judge
from timeoutmgr.testing.chaos.promises import Promise, PromiseFile, Promises
from timeoutmgr.testing.chaos.trouble import Trouble
from timeoutmgr.testing.chaos.troupe import Part
from timeoutmgr.testing.signals import eventually

ROOT = Path(__file__).parents[2]

Chaos = Callable[..., dict[str, Any]]


# --- whole runs -------------------------------------------------------------------------------


@pytest.fixture
def chaos(tmp_path: Path) -> Chaos:
    def run(*arguments: str) -> dict[str, Any]:
        module = ["-m", "timeoutmgr.testing.chaos"]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        ended = subprocess.run(
            [sys.executable, *module, "--json", *arguments],
            env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert list(tmp_path.iterdir()) == []
        verdict: dict[str, Any] = json.loads(ended.stdout)
        return verdict

    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_chaos_on_one_file_repeats_nothing(chaos: Chaos) -> None:
    verdict = chaos("--seconds", "8", "--seed", "1")

    assert verdict["broken"] == []
    assert verdict["accepted"] == verdict["delivered"] > 0
    assert verdict["repeated"] == 0
    assert verdict["kills"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_workers_lose_nothing_on_rabbitmq_and_postgresql(
    chaos: Chaos, rabbitmq_url: str, postgres_url: str
) -> None:
    where = ("--broker", rabbitmq_url, "--store", postgres_url)
    verdict = chaos("--seconds", "10", "--seed", "1", *where, "--no-pauses", "--no-cuts")

    assert verdict["broken"] == []
    assert verdict["accepted"] == verdict["delivered"] > 0
    assert (verdict["pauses"], verdict["cuts"]) == (0, 0)
    assert verdict["kills"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_database_and_broker_may_be_killed_meanwhile(
    private_server: Callable[[str], PrivateServer],
) -> None:
    database, broker = private_server("postgres"), private_server("rabbitmq")

    def restart(server: PrivateServer) -> Callable[[], None]:
        def restarted() -> None:
            server.kill()
            server.start()

        return restarted

    verdict = run_chaos(
        ChaosSettings(
            seconds=15,
            seed=1,
            store=database.url,
            broker=broker.url,
            rate=30,
            restart_every=(3, 6),
        ),
        restart_store=restart(database),
        restart_broker=restart(broker),
    )

    assert verdict.broken == ()
    assert verdict.restarts >= 2


# --- the plan ---------------------------------------------------------------------------------


def test_one_seed_is_one_plan() -> None:
    settings = ChaosSettings(seed=7)

    assert plan(settings) == plan(settings) != plan(replace(settings, seed=8))


def test_a_fault_that_is_left_out_does_not_move_the_others() -> None:
    settings = ChaosSettings(seed=7)

    without = plan(settings, set(FaultKind) - {FaultKind.KILL})

    assert without == [fault for fault in plan(settings) if fault.kind is not FaultKind.KILL]


def test_faults_come_in_order_and_end_in_time() -> None:
    faults = plan(ChaosSettings(seed=7, seconds=20))

    assert {fault.kind for fault in faults} == set(FaultKind)
    times = [fault.at for fault in faults]
    assert times == sorted(times)
    assert times[-1] < 20


def test_some_pauses_are_longer_than_a_claim() -> None:
    settings = ChaosSettings(seed=7, claim_time=5, seconds=600)

    lengths = [fault.length for fault in plan(settings, {FaultKind.PAUSE})]

    assert min(lengths) < 5 < max(lengths)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("seconds", 0.0), ("workers", 0), ("cancelled", 1.1), ("kill_every", (2.0, 1.0))],
)
def test_a_setting_that_makes_no_sense_is_refused(setting: str, value: Any) -> None:
    given: dict[str, Any] = {setting: value}

    with pytest.raises(ConfigurationError, match=setting):
        ChaosSettings(**given)


# --- what happens to a process ----------------------------------------------------------------


@pytest.fixture
def part(tmp_path: Path) -> Iterator[Part]:
    ready = tmp_path / "ready"
    program = f"import pathlib, signal; pathlib.Path({str(ready)!r}).touch(); signal.pause()"
    made = Part(
        name="worker-1",
        command=["-c", program],
        scene=tmp_path / "scene.json",
        log=tmp_path / "worker-1.log",
        ready=ready,
    )
    made.start()
    made.wait_until_ready()
    yield made
    made.stop()


def trouble(*faults: Fault, part: Part, restart: Callable[[], None] | None = None) -> Trouble:
    restarts = {} if restart is None else {FaultKind.RESTART_STORE: restart}
    return Trouble(faults, [part], [part], {}, restarts)


def test_a_killed_process_lives_again_under_another_name(part: Part) -> None:
    first = part.pid
    happening = trouble(Fault(1.0, FaultKind.KILL, 0.5), part=part)

    happening.step(0.9)
    assert happening.incidents == []
    happening.step(1.0)

    [killed] = happening.incidents
    assert (killed.kind, killed.process) == (FaultKind.KILL, "worker-1#1")
    assert part.life == "worker-1#2"
    assert part.pid != first
    assert part.code is None


def test_a_pause_is_an_incident_once_it_is_over(part: Part) -> None:
    happening = trouble(Fault(0.0, FaultKind.PAUSE, 0.5, length=60), part=part)

    happening.step(0.0)
    assert part.is_paused
    assert happening.incidents == []
    happening.calm()

    [paused] = happening.incidents
    assert (paused.kind, paused.process) == (FaultKind.PAUSE, "worker-1#1")
    assert paused.begin < paused.end
    assert not part.is_paused


def test_a_pause_ends_with_the_life_of_the_process(part: Part) -> None:
    faults = (Fault(0.0, FaultKind.PAUSE, 0.5, length=60), Fault(0.0, FaultKind.KILL, 0.5))

    happening = trouble(*faults, part=part)
    happening.step(0.0)

    assert [one.kind for one in happening.incidents] == [FaultKind.PAUSE, FaultKind.KILL]
    assert not part.is_paused


def test_a_process_that_ends_by_itself_is_counted_and_no_incident(part: Part) -> None:
    happening = trouble(part=part)
    os.kill(part.pid, signal.SIGTERM)

    def counted() -> bool:
        happening.step(0.0)
        return part.lives == 2

    eventually(counted, "it is started again")

    assert part.ended == 1
    assert happening.incidents == []


def test_a_server_that_cannot_be_restarted_ends_the_run(part: Part) -> None:
    def restart() -> None:
        raise OSError("no such server")

    happening = trouble(Fault(0.0, FaultKind.RESTART_STORE, 0.5), part=part, restart=restart)
    happening.step(0.0)
    happening.calm()

    with pytest.raises(ChaosFailed, match="no such server"):
        happening.step(1.0)


def test_a_process_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    part = Part(
        name="worker-1",
        command=["-c", "raise SystemExit('no such database')"],
        scene=tmp_path / "scene.json",
        log=tmp_path / "worker-1.log",
        ready=tmp_path / "ready",
    )
    part.start()

    with pytest.raises(ChaosFailed, match="no such database"):
        part.wait_until_ready()


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("sqlite:///chaos.db", None),
        ("postgresql+psycopg://localhost/test", PostgresCutter),
        ("amqp://localhost//", ProxyCutter),
        ("amqp://one//;amqp://other//", None),
    ],
)
def test_connections_are_cut_where_there_are_any(url: str, kind: type | None) -> None:
    found = cutter(url)

    assert type(found) is (kind or type(None))
    if found is not None:
        found.close()


def test_a_process_is_found_by_the_ports_of_its_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        theirs = client.getsockname()[1]

        assert {theirs, server.getsockname()[1]} <= ports_of(os.getpid())
    assert theirs not in ports_of(os.getpid())


@pytest.mark.parametrize("server", ["postgres_url", "mysql_url"])
def test_only_the_connections_of_the_process_are_cut(
    server: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(server)
    found = cutter(url)
    assert found is not None
    program = (
        "import sys, sqlalchemy as s\n"
        "with s.create_engine(sys.argv[1]).connect() as connection:\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    connection.execute(s.text('SELECT 1'))\n"
    )
    with ExitStack() as stack:
        stack.callback(found.close)
        cut, spared = (
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program, url],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(2)
        )
        for child in (cut, spared):
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"

        assert found.cut("worker-1", cut.pid) == 1

        errors = [child.communicate("go on\n", timeout=30)[1] for child in (cut, spared)]
    assert "OperationalError" in errors[0]
    assert spared.returncode == 0, errors[1]


# --- the judge --------------------------------------------------------------------------------

DUE = 10_000_000


def delivery(name: str, at: float, by: str = "worker-1#1", **more: Any) -> Delivery:
    instant = round(at * 1_000_000)
    values = {"message_id": name, "received_at": instant + 1_000, "redelivered": 0, **more}
    return Delivery(name=name, dispatched_at=instant, sent_by=by, **values)


def incident(process: str, begin: float, end: float) -> Incident:
    return Incident(
        kind=FaultKind.KILL,
        process=process,
        begin=round(begin * 1_000_000),
        end=round(end * 1_000_000),
    )


def evidence(
    deliveries: Sequence[Delivery],
    incidents: Sequence[Incident] = (),
    *,
    promises: Sequence[Promise] = (),
    exactly_once: bool = False,
) -> Evidence:
    all_promises = [Promise(name="a", due=DUE, accepted=True), *promises]
    return Evidence(
        promises={promise.name: promise for promise in all_promises},
        deliveries=deliveries,
        incidents=incidents,
        left={"still stored": 0},
        clock_offset=0,
        exactly_once=exactly_once,
        ended=0,
        seed=1,
    )


TWICE = [delivery("a", 11), delivery("a", 15, "worker-2#1")]


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        pytest.param(evidence([delivery("a", 11)]), [], id="all is well"),
        pytest.param(evidence([]), ["1 lost"], id="lost"),
        pytest.param(evidence([delivery("a", 9.9)]), ["1 early"], id="early"),
        pytest.param(
            evidence([delivery("a", 11, message_id="b")]),
            ["1 repeated under another id"],
            id="another id",
        ),
        pytest.param(
            evidence([delivery("a", 11), delivery("b", 11)]),
            ["1 delivered and never sent"],
            id="a stranger",
        ),
        pytest.param(evidence(TWICE), ["1 repeated without a crash"], id="no incident"),
        pytest.param(
            evidence(TWICE, [incident("worker-1#1", 12, 12)]), [], id="the first sender was killed"
        ),
        pytest.param(
            evidence(TWICE, [incident("worker-2#1", 10, 14)]), [], id="the second was paused"
        ),
        pytest.param(evidence(TWICE, [incident(SERVERS, 12, 13)]), [], id="a server went down"),
        pytest.param(
            evidence(TWICE, [incident("worker-1#2", 12, 12), incident("worker-3#1", 12, 12)]),
            ["1 repeated without a crash"],
            id="others were killed",
        ),
        pytest.param(
            evidence(TWICE, [incident("worker-1#1", 16, 16)]),
            ["1 repeated without a crash"],
            id="killed too late",
        ),
        pytest.param(
            evidence(TWICE, [incident("worker-1#1", 12, 12)], exactly_once=True),
            ["1 repeated where one transaction spans queue and store"],
            id="no repeat at all in one transaction",
        ),
        pytest.param(
            evidence([delivery("a", 11), delivery("a", 11, redelivered=1)]),
            [],
            id="handed out again by the broker",
        ),
        pytest.param(
            evidence([delivery("a", 11), delivery("a", 11)]),
            ["1 repeated without a crash"],
            id="one dispatch came twice",
        ),
    ],
)
def test_the_judge_names_each_promise_that_was_broken(given: Evidence, broken: list[str]) -> None:
    assert list(judge(given).broken) == broken


@pytest.mark.parametrize(
    ("answer", "is_delivered", "broken"),
    [
        ("cancelled", False, []),
        ("cancelled", True, ["1 delivered although cancelled"]),
        ("unknown", False, []),
        ("unknown", True, ["1 delivered although cancelled"]),
        ("too_late", True, []),
        ("too_late", False, ["1 lost"]),
        ("maybe_sent", True, []),
        ("maybe_sent", False, []),
        (None, False, []),
    ],
)
def test_what_a_cancel_answered_is_held_to(
    answer: str | None, is_delivered: bool, broken: list[str]
) -> None:
    promise = Promise(name="b", due=DUE, accepted=True, cancelling=True, cancel=answer)
    deliveries = [delivery("a", 11), *([delivery("b", 11)] if is_delivered else [])]

    assert list(judge(evidence(deliveries, promises=[promise])).broken) == broken


def test_a_send_without_an_answer_is_held_to_nothing() -> None:
    promise = Promise(name="b", due=DUE, accepted=False)

    verdict = judge(evidence([delivery("a", 11)], promises=[promise]))

    assert verdict.broken == ()
    assert verdict.accepted == 1


def test_a_run_without_messages_is_no_success() -> None:
    nothing = replace(evidence([]), promises={})

    assert judge(nothing).broken == ("nothing was accepted",)


def test_what_is_left_behind_is_named() -> None:
    left = replace(evidence([delivery("a", 11)]), left={"in the error queue": 2})

    assert judge(left).broken == ("2 in the error queue",)


# --- the producers' record --------------------------------------------------------------------


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "producer-1.jsonl"
    file = PromiseFile(path)
    file.trying("a", DUE)
    whole = path.read_bytes()
    promises = Promises([path])
    path.write_bytes(whole + b'{"step": "accep')

    assert not promises.read()["a"].accepted

    path.write_bytes(whole + b'{"step": "accepted", "name": "a"}\n')
    file.close()

    assert promises.read()["a"].accepted
