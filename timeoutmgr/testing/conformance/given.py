"""The suites on the parts that the command line names, with no file to write.

::

    pytest --pyargs timeoutmgr.testing.conformance.given --timeoutmgr-persistence my.module:make

What the capabilities say decides which cases are run. A subclass of one's own can say more: that
the clock can be set, how to lose a lease.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from timeoutmgr.contracts import Persistence, TransactionMode, Transport
from timeoutmgr.testing.conformance.plugin import given
from timeoutmgr.testing.conformance.stores import StoreConformance
from timeoutmgr.testing.conformance.transports import TransportConformance

if "persistence" in given:
    with closing(given["persistence"]()) as _persistence:
        _store_can = _persistence.capabilities
        _has_database = _persistence.database is not None

    class TestStore(StoreConformance):
        """The given persistence."""

        durable, row_locks = _store_can.durable, _store_can.row_locks
        transactions = limits_text = _has_database
        settable_clock = False

        @pytest.fixture
        def make_persistence(self) -> Callable[[], Persistence]:
            """Return the given maker."""
            return given["persistence"]


if "transport" in given:
    with closing(given["transport"]()) as _transport:
        _transport_can = _transport.capabilities

    class TestTransport(TransportConformance):
        """The given transport."""

        durable = _transport_can.durable
        transactions = TransactionMode.SENDS_ATOMIC_WITH_RECEIVE in _transport_can.modes

        @pytest.fixture
        def make_transport(self) -> Callable[[], Transport]:
            """Return the given maker."""
            return given["transport"]
