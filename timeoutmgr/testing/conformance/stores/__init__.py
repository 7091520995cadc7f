"""The suite of the stores: subclass it, give it a persistence, and say what that can do."""

from timeoutmgr.testing.conformance.samples import SetClock
from timeoutmgr.testing.conformance.stores.changing import Changing
from timeoutmgr.testing.conformance.stores.claiming import Claiming
from timeoutmgr.testing.conformance.stores.looking import Looking
from timeoutmgr.testing.conformance.stores.races import Races
from timeoutmgr.testing.conformance.stores.repeating import Repeating
from timeoutmgr.testing.conformance.stores.storing import Storing
from timeoutmgr.testing.conformance.stores.suite import Stores
from timeoutmgr.testing.conformance.stores.taking import Taking
from timeoutmgr.testing.conformance.stores.transactions import InTransactions

__all__ = ["SetClock", "StoreConformance", "Stores"]


class StoreConformance(
    Storing, Repeating, Claiming, Taking, Changing, Looking, Races, InTransactions
):
    """All that :class:`timeoutmgr.contracts.TimeoutStore` promises, as tests.

    A subclass overrides the fixture ``make_persistence`` and states the facts of
    :class:`timeoutmgr.testing.conformance.stores.suite.StoreSuite`.
    """
