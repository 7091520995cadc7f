"""Modules that a worker loads: each module that it does not use costs memory in every process."""

import json
import subprocess
import sys

UNUSED = ["sqlite3", "http.client", "secrets", "pyspark", "alembic"]
WORKER = """
import json, sys
import timeoutmgr.cli.run
import timeoutmgr.endpoint.endpoint
import timeoutmgr.persistence.sql.store
import timeoutmgr.satellites.timeout_manager.feature
import timeoutmgr.transport.kombu_transport
print(json.dumps(sorted(sys.modules)))
"""


def test_a_worker_on_rabbitmq_and_postgresql_loads_no_module_of_other_stands() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", WORKER], capture_output=True, text=True, check=True, timeout=60
    )

    loaded = set(json.loads(answer.stdout))

    assert "timeoutmgr.transport.amqp.session" in loaded
    assert loaded.isdisjoint(UNUSED)
