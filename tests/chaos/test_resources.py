"""The stage is looked at again when a connection turns out dead, but not for ever."""

from __future__ import annotations

import pytest

from timeoutmgr.errors import StorageUnavailable
from timeoutmgr.testing.chaos.stage import looked


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
