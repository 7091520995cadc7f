"""`make demo DEMO=deadletters` shows the outcomes that it announces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.behaviour(104)
def test_seven_messages_reach_the_expected_queues_and_are_sent_again() -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "deadletters" / "run.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("7 messages are dead")
    # The late message ends by the sweep of the shop, or in the hands of the warehouse.
    ended_by = [ended.stdout.count(f"{node}, deadletter:") for node in ("shop-1", "warehouse-1")]
    assert ended_by in ([2, 4], [3, 3])
    assert ended.stdout.count("shop-1, deadxact:") == 1
    assert ended.stdout.endswith("0 dead letters are left\n")
