"""Rows may become timeouts of an endpoint that the store knows; these tests need no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.pipeline.rows import batch, row
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.main import cli
from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.jobs.schedule import require_known
from timeoutmgr.pipeline.stores import Store
from timeoutmgr.pipeline.writers.loader import Loader

CLOCK = SystemClock()


def test_an_endpoint_is_known_by_its_timeouts_or_by_its_heartbeat(store: Store) -> None:
    Loader(store).load([batch([row(1, endpoint="billing")])])
    mail = store.persistence.timeouts("mail", CLOCK)
    mail.heartbeat("mail 1", {})

    require_known(store.name, "billing", CLOCK)
    require_known(store.name, "mail", CLOCK)
    mail.unregister_process("mail 1")
    with pytest.raises(
        ConfigurationError, match=r"knows no endpoint 'mail': .* start the endpoint"
    ):
        require_known(store.name, "mail", CLOCK)


def test_rows_for_an_unknown_endpoint_are_refused(sqlite: Store, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "rows.parquet")
    words = ("--json", "--config", sqlite.name, "pipeline", "schedule", nowhere, "--dry-run")

    refused = CliRunner().invoke(cli, [*words, "--dataset", "spring", "--endpoint", "slaes"])

    assert refused.exit_code == Exit.CONFIGURATION, refused.output
    answer = json.loads(refused.output)
    assert "no endpoint 'slaes'" in answer["error"]
