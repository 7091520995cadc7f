"""What ends an outage of the storage: that it answers, and not that there is nothing to do."""

from __future__ import annotations

import pytest

from tests.transport.test_pump import AWAY, Mill
from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.resilience.breakers import BreakerState


def test_an_empty_look_does_not_disarm_a_storage_that_is_away() -> None:
    mill = Mill()
    mill.storage.failure(AWAY)
    mill.probed = [AWAY]

    with pytest.raises(StorageUnavailable):
        mill.turn()

    assert mill.storage.state is BreakerState.ARMED
