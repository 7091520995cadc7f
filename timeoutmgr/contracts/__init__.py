"""Ports of the core: stores, transports, clocks.

All ports are synchronous: a step over them is a plain function, so that production, unit tests,
the crash model and the simulator run the same code. An instant is UTC microseconds
(:data:`timeoutmgr.message.instants.Micros`), a wait is seconds of a monotonic clock.
"""

from timeoutmgr.contracts.clocks import Clock
from timeoutmgr.contracts.dead_letters import DeadLetterResult, DeadLetters
from timeoutmgr.contracts.delayed import (
    Closes,
    CountsDelayed,
    CountsDestinations,
    DelayedMessageStore,
    DelayedMessageStoreWithInfrastructure,
    FetchesInBatches,
    HasDdl,
    HasStoreClock,
    HearsOfStored,
    RemovesInBatches,
    StoresInBatches,
)
from timeoutmgr.contracts.histories import HistoryEntry, KeepsHistory
from timeoutmgr.contracts.markers import BearsMarkers, KeepsMarkers, StoreMarker
from timeoutmgr.contracts.outcomes import CancelResult, ChangeResult, Outcome, OutcomeKind
from timeoutmgr.contracts.persistences import (
    CanUninstall,
    HasLayout,
    KeepsTimeouts,
    Layout,
    Persistence,
    ReportsEndpoints,
    StoreCapabilities,
)
from timeoutmgr.contracts.queue_reports import InspectsQueues, QueueReport
from timeoutmgr.contracts.repeats import ExaminesIds, Repeat, RepeatKind
from timeoutmgr.contracts.reports import Count, EndpointReport, ProcessRecord, StoreStatistics
from timeoutmgr.contracts.sessions import (
    Answered,
    BrowsesQueues,
    Receiver,
    Sending,
    SendResult,
    StartsSending,
    TellsTime,
    TransportSession,
)
from timeoutmgr.contracts.stores import (
    ChoosesClock,
    CountsInBounds,
    LeavesKeys,
    ListsInBounds,
    LockedTimeouts,
    MeasuresPurge,
    TimeoutStore,
    WakePoller,
    WakesProcesses,
    Wakeups,
)
from timeoutmgr.contracts.timeouts import (
    Chunk,
    ConflictName,
    Key,
    OnConflict,
    Page,
    Timeout,
    TimeoutFilter,
    TimeoutState,
)
from timeoutmgr.contracts.topologies import Binding, Exchange, Queue, Topology, TopologySession
from timeoutmgr.contracts.transactions import ModeName, SharedDatabase, Transaction, TransactionMode
from timeoutmgr.contracts.transports import (
    HasLink,
    LinkSecurity,
    Transport,
    TransportCapabilities,
)

__all__ = [
    "Answered",
    "BearsMarkers",
    "Binding",
    "BrowsesQueues",
    "CanUninstall",
    "CancelResult",
    "ChangeResult",
    "ChoosesClock",
    "Chunk",
    "Clock",
    "Closes",
    "ConflictName",
    "Count",
    "CountsDelayed",
    "CountsDestinations",
    "CountsInBounds",
    "DeadLetterResult",
    "DeadLetters",
    "DelayedMessageStore",
    "DelayedMessageStoreWithInfrastructure",
    "EndpointReport",
    "ExaminesIds",
    "Exchange",
    "FetchesInBatches",
    "HasDdl",
    "HasLayout",
    "HasLink",
    "HasStoreClock",
    "HearsOfStored",
    "HistoryEntry",
    "InspectsQueues",
    "KeepsHistory",
    "KeepsMarkers",
    "KeepsTimeouts",
    "Key",
    "Layout",
    "LeavesKeys",
    "LinkSecurity",
    "ListsInBounds",
    "LockedTimeouts",
    "MeasuresPurge",
    "ModeName",
    "OnConflict",
    "Outcome",
    "OutcomeKind",
    "Page",
    "Persistence",
    "ProcessRecord",
    "Queue",
    "QueueReport",
    "Receiver",
    "RemovesInBatches",
    "Repeat",
    "RepeatKind",
    "ReportsEndpoints",
    "SendResult",
    "Sending",
    "SharedDatabase",
    "StartsSending",
    "StoreCapabilities",
    "StoreMarker",
    "StoreStatistics",
    "StoresInBatches",
    "TellsTime",
    "Timeout",
    "TimeoutFilter",
    "TimeoutState",
    "TimeoutStore",
    "Topology",
    "TopologySession",
    "Transaction",
    "TransactionMode",
    "Transport",
    "TransportCapabilities",
    "TransportSession",
    "WakePoller",
    "WakesProcesses",
    "Wakeups",
]
