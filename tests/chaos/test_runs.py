"""A run whose processes and servers are killed loses nothing, and says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos import ChaosSettings, run_chaos
from tests.services.private import PrivateServer
from tests.testing.projects import ROOT

Chaos = Callable[..., dict[str, Any]]


@pytest.fixture
def chaos(tmp_path: Path) -> Chaos:
    def run(*arguments: str) -> dict[str, Any]:
        module = ["-m", "chaos"]
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
    verdict = chaos(
        *("--seconds", "8", "--seed", "1", "--dead", "0.1", "--failing", "0.3"),
        *("--awaited", "0.2", "--rate", "100"),  # enough batches also on a busy machine
    )

    assert verdict["broken"] == []
    assert verdict["accepted"] == verdict["delivered"] > 0
    assert verdict["repeated"] == 0
    assert verdict["kills"] > 0
    assert verdict["dead"] > 0
    assert verdict["foreign"] > 0
    assert verdict["handled"]["with_a_failure"] > 0
    assert verdict["handled"]["in_errors"] > 0
    assert verdict["handled"]["awaited"] > 0


@pytest.mark.long
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


@pytest.mark.long
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
    assert verdict["foreign"] > 0
    assert verdict["handled"]["in_errors"] > 0
    assert verdict["handled"]["at_once"] > 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_messages_of_another_program_reach_a_broker_beside_the_database(
    chaos: Chaos, rabbitmq_url: str, postgres_url: str
) -> None:
    where = ("--split", "--broker", rabbitmq_url, "--store", postgres_url)

    verdict = chaos("--seconds", "8", "--seed", "1", *where)

    assert verdict["broken"] == []
    assert verdict["foreign"] == verdict["accepted"] == verdict["delivered"] > 0
    assert verdict["kills"] > 0


@pytest.mark.long
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


@pytest.mark.long
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
