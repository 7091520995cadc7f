"""The suites for the parts that the command line names; no test file is needed.

::

    pytest --pyargs timeoutmgr.testing.conformance.given --timeoutmgr-persistence my.module:make

The capabilities decide which cases run. A subclass can state more facts: that the clock can be
set, how to lose a lease, when a fetched message is unlocked again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import (
    DelayedMessageStore,
    HasStoreClock,
    Persistence,
    TransactionMode,
    Transport,
)
from timeoutmgr.contracts.audit import KeepsAudit
from timeoutmgr.contracts.bulk_runs import KeepsBulkRuns
from timeoutmgr.contracts.insight import Insight
from timeoutmgr.contracts.pauses import PausesDispatch
from timeoutmgr.contracts.sagas import ClearsInOrder, FindsByLabels
from timeoutmgr.contracts.schedules import KeepsSchedules
from timeoutmgr.contracts.stores import ReroutesTimeouts
from timeoutmgr.contracts.transports import ExpiresMessages
from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings
from timeoutmgr.testing.conformance.delayed import DelayedStoreConformance
from timeoutmgr.testing.conformance.delayed.suite import forms
from timeoutmgr.testing.conformance.plugin import given
from timeoutmgr.testing.conformance.stores import StoreConformance
from timeoutmgr.testing.conformance.transports import TransportConformance

if "persistence" in given:
    with closing(given["persistence"]()) as _persistence:
        _store_can = _persistence.capabilities
        _has_database = _persistence.database is not None
        _store = _persistence.timeouts("conformance", SystemClock())

    class TestStore(StoreConformance):
        """The given persistence."""

        durable, row_locks = _store_can.durable, _store_can.row_locks
        transactions = limits_text = _has_database
        settable_clock = False
        keeps_schedules = isinstance(_store, KeepsSchedules)
        reroutes = isinstance(_store, ReroutesTimeouts)
        clears_in_order = isinstance(_store, ClearsInOrder)
        finds_by_labels = isinstance(_store, FindsByLabels)
        has_insight = isinstance(_store, Insight)
        pauses_dispatch = isinstance(_store, PausesDispatch)
        changes_in_bulk = isinstance(_store, KeepsBulkRuns)
        keeps_audit = isinstance(_store, KeepsAudit)

        @pytest.fixture
        def make_persistence(self) -> Callable[[], Persistence]:
            """Return the given maker."""
            return given["persistence"]


if "delayed-store" in given:
    _delayed = DelayedDeliverySettings(given["delayed-store"]())
    _forms = forms(_delayed.store)

    class TestDelayedStore(DelayedStoreConformance):
        """The given delayed message store."""

        row_locks = _delayed.capabilities.row_locks
        transactions = limits_text = _delayed.database is not None
        settable_clock = not isinstance(_delayed.store, HasStoreClock)
        keeps_endpoints_apart = False
        fetches_in_batches = _forms["fetches_in_batches"]
        stores_in_batches = _forms["stores_in_batches"]
        removes_in_batches = _forms["removes_in_batches"]

        @pytest.fixture
        def make_store(self) -> Callable[[], DelayedMessageStore]:
            """Return the given maker."""
            return given["delayed-store"]


if "transport" in given:
    with closing(given["transport"]()) as _transport:
        _transport_can = _transport.capabilities
        _expires = isinstance(_transport, ExpiresMessages)

    class TestTransport(TransportConformance):
        """The given transport."""

        durable = _transport_can.durable
        transactions = TransactionMode.SENDS_ATOMIC_WITH_RECEIVE in _transport_can.modes
        expires_messages = _expires

        @pytest.fixture
        def make_transport(self) -> Callable[[], Transport]:
            """Return the given maker."""
            return given["transport"]
