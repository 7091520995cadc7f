"""The suite of the delayed message stores: subclass it, give it a store, state its facts."""

from timeoutmgr.testing.conformance.delayed.fetch import DelayedAttempts, DelayedFetch
from timeoutmgr.testing.conformance.delayed.insertion import (
    DelayedInsertion,
    DelayedRaces,
    DelayedRemoval,
)
from timeoutmgr.testing.conformance.delayed.suite import DelayedStores
from timeoutmgr.testing.conformance.samples import SetClock
from timeoutmgr.testing.conformance.shared_cases import SharedCases

__all__ = ["DelayedStoreConformance", "DelayedStores", "SetClock"]


class DelayedStoreConformance(
    SharedCases, DelayedInsertion, DelayedFetch, DelayedRemoval, DelayedAttempts, DelayedRaces
):
    """All that :class:`timeoutmgr.contracts.DelayedMessageStore` promises, as tests.

    A subclass overrides the fixture ``make_store`` and states the facts of
    :class:`timeoutmgr.testing.conformance.delayed.suite.DelayedSuite`.
    """
