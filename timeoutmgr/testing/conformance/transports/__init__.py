"""The suite of the transports: subclass it, give it a transport, state its facts."""

from timeoutmgr.testing.conformance.transports.concurrency import (
    TransportConcurrency,
    TransportExpiry,
    TransportTransactions,
)
from timeoutmgr.testing.conformance.transports.queues import TransportQueues
from timeoutmgr.testing.conformance.transports.receiver import TransportReceiver
from timeoutmgr.testing.conformance.transports.sender import (
    ForeignMessages,
    TransportContents,
    TransportSender,
)

__all__ = ["TransportConformance"]


class TransportConformance(
    TransportQueues,
    TransportSender,
    TransportContents,
    ForeignMessages,
    TransportReceiver,
    TransportConcurrency,
    TransportTransactions,
    TransportExpiry,
):
    """All that :class:`timeoutmgr.contracts.Transport` promises, as tests.

    A subclass overrides the fixture ``make_transport`` and states the facts of
    :class:`timeoutmgr.testing.conformance.transports.suite.TransportSuite`.
    """
