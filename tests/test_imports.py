"""Modules that a worker loads: each module that it does not use costs memory in every process."""

import json
import subprocess
import sys

UNUSED = [
    *("redis", "packaging", "kombu.transport.redis"),
    *("sqlite3", "http.client", "secrets", "pyspark", "alembic"),
]
FRAMEWORKS = ["django.db", "flask", "fastapi", "starlette", "timeoutmgr.contrib"]
"""Kombu itself imports a part of Django where Django is installed, but no part for databases."""
WORKER = """
import json, sys
import timeoutmgr.cli.run
import timeoutmgr.endpoint.endpoint
import timeoutmgr.persistence.sql.store
import timeoutmgr.satellites.timeout_manager.feature
import timeoutmgr.transport.kombu_transport
print(json.dumps(sorted(sys.modules)))
"""
ON_RABBITMQ = """
import json, sys
sys.modules.update(dict.fromkeys(["redis", "packaging"]))  # an import of them fails
from timeoutmgr.transport.kombu_transport import KombuTransport
KombuTransport("amqp://guest:guest@localhost//").close()
print(json.dumps(sorted(sys.modules)))
"""
CONTRACTS = """
import json, sys
import timeoutmgr.contracts
print(json.dumps(sorted(sys.modules)))
"""
COMMAND = """
import json, sys
import click
from timeoutmgr.cli.main import cli
cli.get_command(click.Context(cli), "send")
print(json.dumps(sorted(sys.modules)))
"""
ERRORS = """
import json, sys
import timeoutmgr
timeoutmgr.errors.InvalidMessage
print(json.dumps(sorted(sys.modules)))
"""


def test_a_worker_on_rabbitmq_and_postgresql_loads_no_module_of_other_stands() -> None:
    loaded = _loaded(WORKER)

    assert "timeoutmgr.transport.amqp.session" in loaded
    assert loaded.isdisjoint([*UNUSED, *FRAMEWORKS])


def test_rabbitmq_needs_no_client_of_redis() -> None:
    assert "timeoutmgr.transport.amqp.session" in _loaded(ON_RABBITMQ)


def test_the_contracts_load_neither_sqlalchemy_nor_the_database_room() -> None:
    loaded = _loaded(CONTRACTS)

    assert "timeoutmgr.contracts.stores" in loaded
    assert loaded.isdisjoint({"sqlalchemy", "timeoutmgr.database", "timeoutmgr.endpoint"})


def test_a_command_loads_no_module_of_other_commands() -> None:
    loaded = _loaded(COMMAND)

    assert "timeoutmgr.cli.send" in loaded
    assert {name for name in loaded if name.startswith("timeoutmgr.cli.")} <= {
        f"timeoutmgr.cli.{name}"
        for name in ("exits", "main", "options", "output", "send", "shared", "log_format")
    }
    assert loaded.isdisjoint({"sqlalchemy", "apscheduler", "timeoutmgr.pipeline"})


def test_a_program_names_an_error_without_an_import_of_the_errors() -> None:
    assert "timeoutmgr.errors" in _loaded(ERRORS)


def _loaded(program: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after *program*."""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(answer.stdout))
