"""The suite of the delayed message stores: subclass it, give it a store, say what that can do."""

from timeoutmgr.testing.conformance.delayed.counting import Counting
from timeoutmgr.testing.conformance.delayed.fetching import Fetching
from timeoutmgr.testing.conformance.delayed.races import Races
from timeoutmgr.testing.conformance.delayed.removing import Removing
from timeoutmgr.testing.conformance.delayed.storing import Storing
from timeoutmgr.testing.conformance.delayed.suite import DelayedStores
from timeoutmgr.testing.conformance.delayed.transactions import InTransactions
from timeoutmgr.testing.conformance.samples import SetClock

__all__ = ["DelayedStoreConformance", "DelayedStores", "SetClock"]


class DelayedStoreConformance(Storing, Fetching, Removing, Counting, InTransactions, Races):
    """All that :class:`timeoutmgr.contracts.DelayedMessageStore` promises, as tests.

    A subclass overrides the fixture ``make_store`` and states the facts of
    :class:`timeoutmgr.testing.conformance.delayed.suite.DelayedSuite`.
    """
