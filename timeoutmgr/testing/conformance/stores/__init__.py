"""The suite of the timeout stores: subclass it, give it a persistence, state its facts."""

from timeoutmgr.testing.conformance.samples import SetClock
from timeoutmgr.testing.conformance.shared_cases import SharedCases
from timeoutmgr.testing.conformance.stores.changes import AuditCases, BulkCases, PauseCases
from timeoutmgr.testing.conformance.stores.claims import TimeoutClaims
from timeoutmgr.testing.conformance.stores.commands import CommandCases
from timeoutmgr.testing.conformance.stores.dispatch_lock import TimeoutDispatchLock
from timeoutmgr.testing.conformance.stores.insertion import TimeoutInsertion, TimeoutTransactions
from timeoutmgr.testing.conformance.stores.insight import InsightCases
from timeoutmgr.testing.conformance.stores.labels import LabelCases
from timeoutmgr.testing.conformance.stores.queries import QueryCases
from timeoutmgr.testing.conformance.stores.races import TimeoutRaces
from timeoutmgr.testing.conformance.stores.repeats import TimeoutRepeats
from timeoutmgr.testing.conformance.stores.sagas import SagaCases
from timeoutmgr.testing.conformance.stores.schedules import ScheduleCases
from timeoutmgr.testing.conformance.stores.suite import Stores

__all__ = ["SetClock", "StoreConformance", "Stores"]


class StoreConformance(
    SharedCases,
    TimeoutInsertion,
    TimeoutRepeats,
    TimeoutClaims,
    TimeoutDispatchLock,
    CommandCases,
    QueryCases,
    TimeoutRaces,
    TimeoutTransactions,
    ScheduleCases,
    SagaCases,
    LabelCases,
    InsightCases,
    PauseCases,
    BulkCases,
    AuditCases,
):
    """All that :class:`timeoutmgr.contracts.TimeoutStore` promises, as tests.

    A subclass overrides the fixture ``make_persistence`` and states the facts of
    :class:`timeoutmgr.testing.conformance.stores.suite.StoreSuite`.
    """
