from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import amqp
import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.services.private import PrivateServer
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import StartsSending
from timeoutmgr.errors import ConfigurationError, StorageUnavailable
from timeoutmgr.message import Message, Outgoing
from timeoutmgr.native.infrastructure import with_exchanges
from timeoutmgr.native.names import OURS
from timeoutmgr.native.routes import to_levels
from timeoutmgr.native.topology import delay_topology, unroutable_topology
from timeoutmgr.testing.chaos import (
    ChaosFailed,
    ChaosSettings,
    Fault,
    FaultKind,
    plan,
    run_chaos,
)
from timeoutmgr.testing.chaos.births import Nursery
from timeoutmgr.testing.chaos.connections import Cutter, PostgresCutter, ProxyCutter, cutter
from timeoutmgr.testing.chaos.deliveries import Delivery
from timeoutmgr.testing.chaos.incidents import SERVERS, Incident
from timeoutmgr.testing.chaos.judge import Evidence, judge
from timeoutmgr.testing.chaos.levels import Levels
from timeoutmgr.testing.chaos.migration import Migration
from timeoutmgr.testing.chaos.processes import PATIENCE
from timeoutmgr.testing.chaos.promises import Promise, PromiseFile, Promises
from timeoutmgr.testing.chaos.scene import Scene
from timeoutmgr.testing.chaos.signatures import SENT_BY, signed
from timeoutmgr.testing.chaos.stage import looked
from timeoutmgr.testing.chaos.trouble import Trouble
from timeoutmgr.testing.chaos.troupe import Part
from timeoutmgr.testing.signals import eventually
from timeoutmgr.transport.kombu_transport import KombuTransport

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
    verdict = chaos("--seconds", "8", "--seed", "1", "--dead", "0.1")

    assert verdict["broken"] == []
    assert verdict["accepted"] == verdict["delivered"] > 0
    assert verdict["repeated"] == 0
    assert verdict["kills"] > 0
    assert verdict["dead"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.behaviour(94)
def test_with_a_delayed_message_store_it_repeats_nothing_either(chaos: Chaos) -> None:
    short = ("--seconds", "3", "--seed", "1", "--longest-delay", "2", "--no-pauses")
    often = ("--kill-every", "0.2", "0.6")

    verdict = chaos(*short, *often, "--delayed-store", "--dead", "0.1")

    assert verdict["broken"] == []
    assert verdict["accepted"] == verdict["delivered"] > 0
    assert (verdict["repeated"], verdict["cancelled"]) == (0, 0)
    assert verdict["kills"] > 0
    assert verdict["dead"] > 0


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
            native=True,
            migrate=True,
        ),
        restart_store=restart(database),
        restart_broker=restart(broker),
    )

    assert verdict.broken == (), "\n".join((*verdict.broken, *verdict.examples))
    assert verdict.restarts >= 2


def test_a_look_goes_on_past_connections_that_a_restart_left_dead() -> None:
    failures = [StorageUnavailable("gone"), StorageUnavailable("gone too")]

    def look() -> int:
        if failures:
            raise failures.pop()
        return 7

    assert looked(look) == 7
    failures += [StorageUnavailable("away")] * 9
    with pytest.raises(StorageUnavailable):
        looked(look)


@pytest.fixture
def broker_with_empty_levels(rabbitmq_url: str) -> str:
    """This worker's broker without what other tests have left in its delay levels."""
    with (
        closing(KombuTransport(rabbitmq_url)) as transport,
        closing(transport.session()) as session,
    ):
        with_exchanges(session).remove(delay_topology(OURS) + unroutable_topology())
    return rabbitmq_url


def test_levels_that_hold_messages_of_others_are_refused_and_left_alone(
    broker_with_empty_levels: str,
) -> None:
    message = Message(id="other", headers={}, body=b"", content_type="text/plain")
    with closing(KombuTransport(broker_with_empty_levels)) as transport:
        others = Levels(transport, [])
        others.install()
        with closing(transport.session()) as session:
            in_an_hour = SystemClock().now() + 3_600_000_000
            session.send([to_levels(Outgoing("nobody", message), in_an_hour, OURS, SystemClock())])
        eventually(lambda: others.count() == 1, "it is in a level")

        with pytest.raises(ChaosFailed, match="virtual host"):
            Levels(transport, [])

        assert others.count() == 1
        others.clear()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.behaviour(119, 132)
def test_a_mixed_fleet_loses_nothing_while_a_migration_is_killed_again_and_again(
    chaos: Chaos, broker_with_empty_levels: str, postgres_url: str
) -> None:
    where = ("--broker", broker_with_empty_levels, "--store", postgres_url)
    short = ("--seconds", "3", "--seed", "1", "--longest-delay", "2", "--no-pauses")

    seldom = ("--kill-migration-every", "0.8", "2")  # so that it also gets somewhere

    verdict = chaos(*short, *where, *seldom, "--native", "--migrate")

    assert verdict["broken"] == []
    assert verdict["accepted"] == verdict["delivered"] > verdict["through_levels"] > 0
    assert verdict["migrated"]["completed"] > 0
    assert verdict["migrated"]["killed"] > 0


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
    [
        *(("seconds", 0.0), ("workers", 0), ("cancelled", 1.1), ("dead", -0.1)),
        ("kill_every", (2.0, 1.0)),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(setting: str, value: Any) -> None:
    given: dict[str, Any] = {setting: value}

    with pytest.raises(ConfigurationError, match=setting):
        ChaosSettings(**given)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"native": True}, "RabbitMQ"),
        ({"migrate": True, "broker": "redis://localhost"}, "RabbitMQ"),
        ({"migrate": True, "broker": "amqp://localhost", "delayed_store": True}, "delayed_store"),
        ({"migrate": True, "broker": "amqp://localhost", "dead": 0.1}, "dead"),
        ({"native": True, "broker": "amqp://localhost", "producers": 1}, "producers"),
    ],
)
def test_what_delay_levels_cannot_do_is_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        ChaosSettings(**given)


# --- what happens to a process ----------------------------------------------------------------


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path / "nursery.log")
    yield made
    made.close()


@pytest.fixture
def part(tmp_path: Path, nursery: Nursery) -> Iterator[Part]:
    made = Part(
        name="worker-1",
        nursery=nursery,
        entry="signal:pause",
        scene=tmp_path / "scene.json",
        log=tmp_path / "worker-1.log",
        ready=tmp_path,
    )
    made.start()
    made.wait_until_ready()
    yield made
    made.stop()


def trouble(
    *faults: Fault,
    part: Part,
    restart: Callable[[], None] | None = None,
    store: Cutter | None = None,
) -> Trouble:
    restarts = {} if restart is None else {FaultKind.RESTART_STORE: restart}
    cutters = {} if store is None else {FaultKind.LOSE_COMMIT: store}
    return Trouble(faults, [part], [part], cutters, restarts)


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


def test_a_process_that_does_not_start_is_told_with_its_last_words(
    tmp_path: Path, nursery: Nursery
) -> None:
    part = Part(
        name="worker-1",
        nursery=nursery,
        entry="json.tool:main",
        arguments=["/no/such/database"],
        scene=tmp_path / "scene.json",
        log=tmp_path / "worker-1.log",
        ready=tmp_path / "ready",
    )
    part.start()

    with pytest.raises(ChaosFailed, match="/no/such/database"):
        part.wait_until_ready()


def migration(tmp_path: Path, nursery: Nursery, entry: str) -> Migration:
    return Migration(
        name="migration",
        nursery=nursery,
        entry=entry,
        scene=tmp_path / "scene.json",
        log=tmp_path / "migration.log",
        ready=tmp_path,
        app="shop:endpoint",
        seed=1,
    )


def test_a_killed_migration_is_gone_on_with(tmp_path: Path, nursery: Nursery, part: Part) -> None:
    killed = migration(tmp_path, nursery, "signal:pause")
    killed.start()
    fault = Fault(0.0, FaultKind.KILL_MIGRATION, 0.5)
    happening = Trouble([fault], [part], [part], {}, {}, killed)

    happening.step(0.0)

    [incident] = happening.incidents
    assert (incident.kind, incident.process) == (FaultKind.KILL_MIGRATION, "migration#1")
    assert killed.life == "migration#2"
    assert killed.code is None
    killed.stop()


def test_a_migration_is_begun_again_until_it_is_to_finish(tmp_path: Path, nursery: Nursery) -> None:
    ends_well = migration(tmp_path, nursery, "sys:exit")
    ends_well.start()

    def has_lived(lives: int) -> bool:
        ends_well.tend()
        return ends_well.lives >= lives

    eventually(lambda: has_lived(3), "it is begun again and again")
    assert not ends_well.is_finished
    ends_well.finish()
    eventually(lambda: has_lived(100) or ends_well.is_finished, "it has come to its end")

    lives = ends_well.lives
    assert ends_well.tend() == []
    assert (ends_well.lives, ends_well.ended) == (lives, 0)


# --- the nursery ------------------------------------------------------------------------------


def test_each_life_is_a_process_with_its_own_name_and_log(tmp_path: Path, nursery: Nursery) -> None:
    scene = Scene(folder=str(tmp_path), broker="", store="", suffix="", claim_time=5, seed=1).save(
        "other"
    )
    child = nursery.start(
        "json.tool:main", [str(scene)], tmp_path / "child.log", {"CHAOS_PROCESS": "worker-1#1"}
    )

    assert child.wait(PATIENCE) == 0
    assert '"claim_time": 5' in (tmp_path / "child.log").read_text()


def test_nobody_outlives_the_nursery_when_it_is_closed(tmp_path: Path, nursery: Nursery) -> None:
    child = nursery.start("signal:pause", [], tmp_path / "child.log", {})
    child.send_signal(signal.SIGSTOP)

    nursery.close()

    eventually(lambda: not is_running(child.pid), "the child is gone")


def test_nobody_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from timeoutmgr.testing.chaos.births import Nursery\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "child = Nursery(folder / 'nursery.log').start('signal:pause', [], folder / 'log', {})\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        assert is_running(child)

        run.kill()

    eventually(lambda: not is_running(child), "the child is gone")


def test_the_end_of_the_nursery_ends_the_run(tmp_path: Path, nursery: Nursery) -> None:
    os.kill(nursery.pid, signal.SIGKILL)

    with pytest.raises(ChaosFailed, match="nursery"):
        nursery.start("signal:pause", [], tmp_path / "child.log", {})


def is_running(pid: int) -> bool:
    """Return whether *pid* is there and no zombie, which its new parent may leave for a while."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(found.stdout.strip()) and not found.stdout.startswith("Z")


# --- connections ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("sqlite:///chaos.db", None),
        ("postgresql+psycopg:///test?host=/run/postgresql", None),
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


@pytest.fixture(params=["postgres_url", "mysql_url"])
def database(request: pytest.FixtureRequest) -> Iterator[Cutter]:
    found = cutter(request.getfixturevalue(request.param))
    assert found is not None
    yield found
    found.close()


@contextmanager
def connected(cutter: Cutter, process: str) -> Iterator[Connection]:
    engine = create_engine(cutter.url(process), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def test_only_the_connections_of_the_process_are_cut(database: Cutter) -> None:
    with connected(database, "worker-1") as cut, connected(database, "worker-2") as spared:
        for connection in (cut, spared):
            connection.execute(text("SELECT 1"))

        assert database.cut("worker-1") == 1

        with pytest.raises(OperationalError):
            cut.execute(text("SELECT 1"))
        cut.invalidate()
        assert spared.execute(text("SELECT 1")).scalar() == 1


def test_a_commit_whose_answer_is_lost_has_happened(
    database: Cutter, part: Part, unique: str
) -> None:
    happening = trouble(Fault(0.0, FaultKind.LOSE_COMMIT, 0.5), part=part, store=database)
    with connected(database, part.name) as connection:
        connection.execute(text(f"CREATE TABLE {unique} (n INT)"))
        connection.commit()
        happening.step(0.0)
        assert happening.incidents == []

        connection.execute(text(f"INSERT INTO {unique} VALUES (1)"))
        with pytest.raises(OperationalError):
            connection.commit()
        connection.invalidate()

    happening.step(0.1)

    [lost] = happening.incidents
    assert (lost.kind, lost.process) == (FaultKind.LOSE_COMMIT, "worker-1#1")
    with connected(database, part.name) as connection:
        assert connection.execute(text(f"SELECT count(*) FROM {unique}")).scalar() == 1
        connection.execute(text(f"DROP TABLE {unique}"))
        connection.commit()


def test_no_answer_is_lost_after_the_chaos(database: Cutter, part: Part) -> None:
    happening = trouble(Fault(0.0, FaultKind.LOSE_COMMIT, 0.5), part=part, store=database)
    with connected(database, part.name) as connection:
        happening.step(0.0)
        happening.calm()

        connection.execute(text("SELECT 1"))
        connection.commit()

    happening.step(0.1)
    assert happening.incidents == []


# --- signatures -------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", ["session", "session_of_batches", "start_sending"])
def test_whatever_way_a_message_leaves_it_is_signed(
    opened: str, rabbitmq_url: str, raw_channel: amqp.Channel
) -> None:
    message = Message(id="m", headers={}, body=b"", content_type="text/plain")
    with closing(KombuTransport(rabbitmq_url)) as plain:
        transport = cast(KombuTransport, signed(plain, ["consumer"], "migration#7"))
        batches = opened == "session_of_batches"
        with closing(
            transport.session_of_batches(9) if batches else transport.session()
        ) as session:
            session.create_queues(["consumer"])
            outgoing = [Outgoing("consumer", message)]
            if opened == "start_sending":
                assert isinstance(session, StartsSending)
                session.start_sending(outgoing).results()
            else:
                session.send(outgoing)

    assert raw_channel.basic_get("consumer", no_ack=True).headers[SENT_BY] == "migration#7"


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


NATIVE = Promise(
    name="a", due=DUE, accepted=True, natively=True, by="producer-2#1", since=1_000_000
)
UNCLEAR = replace(NATIVE, unclear=[2_000_000])
CAME = Promise(name="first", due=DUE, accepted=True)
SENT_ON = Promise(name="a", due=DUE, accepted=True, natively=True, after="first")


def out_of_levels(sent: float, by: str, received: float = 11) -> Delivery:
    times = {"received_at": round(received * 1_000_000), "through_levels": True}
    return delivery("a", sent, by, **times)


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        pytest.param(
            evidence([out_of_levels(2, "producer-2#1")], promises=[NATIVE]), [], id="all is well"
        ),
        pytest.param(
            evidence([out_of_levels(2, "producer-2#1", received=9.9)], promises=[NATIVE]),
            ["1 early"],
            id="early",
        ),
        pytest.param(
            evidence(
                [delivery("a", 10.1), out_of_levels(10.3, "producer-2#1")],
                [incident("producer-2#1", 2, 2)],
                promises=[UNCLEAR],
            ),
            [],
            id="into the store without an answer, then into the levels",
        ),
        pytest.param(
            evidence(
                [delivery("a", 10.1), out_of_levels(10.3, "producer-2#1")],
                [incident("producer-2#1", 2, 2)],
                promises=[NATIVE],
            ),
            ["1 repeated without a crash"],
            id="each send was answered",
        ),
        pytest.param(
            evidence(
                [delivery("a", 10.1), out_of_levels(10.3, "producer-2#1")],
                [incident("producer-2#1", 2, 2)],
                promises=[replace(UNCLEAR, natively=False)],
            ),
            ["1 repeated without a crash"],
            id="a store would have known it",
        ),
        pytest.param(
            evidence(
                [
                    *(
                        delivery("first", at, f"worker-{at}#1", received_by="native-2#1")
                        for at in (11, 12)
                    ),
                    out_of_levels(11.1, "native-2#1", 13),
                    out_of_levels(12.1, "native-2#1", 13),
                ],
                [incident("worker-11#1", 11.5, 11.5)],
                promises=[CAME, SENT_ON],
            ),
            [],
            id="what came twice is sent on twice",
        ),
        pytest.param(
            evidence(
                [
                    delivery("first", 11, received_by="native-2#1"),
                    out_of_levels(11.1, "native-2#1", 13),
                    out_of_levels(12.1, "native-2#1", 13),
                ],
                [incident("worker-1#1", 11.5, 11.5)],
                promises=[CAME, SENT_ON],
            ),
            ["1 repeated without a crash"],
            id="it came once",
        ),
    ],
)
def test_the_judge_knows_what_delay_levels_repeat(given: Evidence, broken: list[str]) -> None:
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


@pytest.mark.parametrize(
    ("accepted", "dead", "broken"),
    [
        (True, {"b": DUE}, []),
        (True, {}, ["1 in no dead-letter queue"]),
        (True, {"b": DUE, "a": DUE}, ["1 dead without a cause"]),
        (True, {"b": DUE - 1}, ["1 early"]),
        (False, {}, []),
        (False, {"b": DUE}, []),
    ],
)
def test_what_is_for_no_queue_has_to_lie_in_a_dead_letter_queue(
    accepted: bool, dead: dict[str, int], broken: list[str]
) -> None:
    promise = Promise(name="b", due=DUE, dies=True, accepted=accepted)
    given = replace(evidence([delivery("a", 11)], promises=[promise]), dead=dead)

    verdict = judge(given)

    assert list(verdict.broken) == broken
    assert verdict.dead == len(dead)


def test_a_send_without_an_answer_is_held_to_nothing() -> None:
    promise = Promise(name="b", due=DUE, accepted=False)

    verdict = judge(evidence([delivery("a", 11)], promises=[promise]))

    assert verdict.broken == ()
    assert verdict.accepted == 1


@pytest.mark.parametrize("exactly_once", [True, False])
def test_the_verdict_says_where_no_repeat_is_allowed(exactly_once: bool) -> None:
    line = str(judge(evidence([delivery("a", 11)], exactly_once=exactly_once)))

    assert line.endswith("no repeat is allowed") is exactly_once


def test_lost_replies_are_counted_and_explain_a_repeat() -> None:
    lost = replace(incident("worker-1#1", 12, 12), kind=FaultKind.LOSE_COMMIT)

    verdict = judge(evidence(TWICE, [lost]))

    assert verdict.broken == ()
    assert verdict.lost_replies == 1


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

    path.write_bytes(whole + b'{"step": "accepted", "name": "a", "at": 1}\n')
    file.close()

    assert promises.read()["a"].accepted
