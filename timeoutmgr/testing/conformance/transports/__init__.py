"""The suite of the transports: subclass it, give it a transport, state its facts."""

from timeoutmgr.testing.conformance.transports.concurrency import (
    TransportConcurrency,
    TransportTransactions,
)
from timeoutmgr.testing.conformance.transports.queues import TransportQueues
from timeoutmgr.testing.conformance.transports.receiver import TransportReceiver
from timeoutmgr.testing.conformance.transports.sender import TransportContents, TransportSender

__all__ = ["TransportConformance"]


class TransportConformance(
    TransportQueues,
    TransportSender,
    TransportContents,
    TransportReceiver,
    TransportConcurrency,
    TransportTransactions,
):
    """All that :class:`timeoutmgr.contracts.Transport` promises, as tests.

    A subclass overrides the fixture ``make_transport`` and states the facts of
    :class:`timeoutmgr.testing.conformance.transports.suite.TransportSuite`.
    """
