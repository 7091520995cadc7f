"""The promises of stores and transports as tests for third parties; docs/reference/testing.md.

::

    from timeoutmgr.testing.conformance.stores import StoreConformance

    class TestMyStore(StoreConformance):
        durable, row_locks, transactions = True, True, False

        @pytest.fixture
        def make_persistence(self):
            return lambda: MyPersistence(...)

This package alone needs pytest. The suites are not imported here: the plugin, which pytest loads
in every run, is in this package too, and has to be quick.
"""

import pytest

pytest.register_assert_rewrite(
    "timeoutmgr.testing.conformance.delayed",
    "timeoutmgr.testing.conformance.shared_cases",
    "timeoutmgr.testing.conformance.stores",
    "timeoutmgr.testing.conformance.transports",
)
