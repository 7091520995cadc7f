"""Each operation of an endpoint is observed, from its first step to its last."""

from __future__ import annotations

from typing import Any

import pytest

from timeoutmgr import EndpointConfiguration
from timeoutmgr.metrics.memory import DURATION_BUCKETS, DURATION_CELLS, CountMemory
from timeoutmgr.metrics.recorder import Recorder
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.telemetry import Counters, Operation
from timeoutmgr.testing import TimeoutKit


def plain(_message: Any, _context: Any) -> None:
    pass


async def awaited(_message: Any, _context: Any) -> None:
    pass


def observed(config: EndpointConfiguration) -> dict[Operation, int]:
    """Return how often each operation was observed while two delayed messages were handled."""
    counts = CountMemory.create(1)
    config.telemetry = Recorder(counts, counts.sections[0], Counters())
    config.enable_feature(TimeoutManager())
    kit = TimeoutKit(config)
    for number in range(2):
        kit.send_local("Hello", number, delay=1)
    kit.advance(seconds=2)
    cells = counts.sections[0].counts
    return {
        operation: sum(cells[first : first + DURATION_BUCKETS])
        for operation, first in DURATION_CELLS.items()
    }


@pytest.mark.behaviour(139)
@pytest.mark.parametrize(
    ("handler", "options"), [(plain, {}), (awaited, {}), (plain, {"batch": "list"})]
)
def test_each_operation_on_a_delayed_message_is_observed(
    handler: Any, options: dict[str, Any]
) -> None:
    config = EndpointConfiguration("shop")
    config.add_handler("Hello", handler, **options)

    found = observed(config)

    assert found[Operation.HANDLER] == 2
    assert all(found.values()), found
