"""A dead connection is tried again, but not for ever."""

from __future__ import annotations

import pytest

from chaos.resources import retry_read
from timeoutmgr.errors import StorageUnavailable


def test_a_query_goes_on_past_connections_that_a_restart_left_dead() -> None:
    failures = [StorageUnavailable("gone"), StorageUnavailable("gone too")]

    def query() -> int:
        if failures:
            raise failures.pop()
        return 7

    assert retry_read(query) == 7
    failures += [StorageUnavailable("away")] * 9
    with pytest.raises(StorageUnavailable):
        retry_read(query)
