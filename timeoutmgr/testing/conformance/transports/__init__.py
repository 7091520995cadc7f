"""The suite of the transports: subclass it, give it a transport, and say what that can do."""

from timeoutmgr.testing.conformance.transports.competing import Competing
from timeoutmgr.testing.conformance.transports.contents import Contents
from timeoutmgr.testing.conformance.transports.queues import Queues
from timeoutmgr.testing.conformance.transports.receiving import Receiving
from timeoutmgr.testing.conformance.transports.sending import Sending
from timeoutmgr.testing.conformance.transports.transactions import InTransactions

__all__ = ["TransportConformance"]


class TransportConformance(Queues, Sending, Contents, Receiving, Competing, InTransactions):
    """All that :class:`timeoutmgr.contracts.Transport` promises, as tests.

    A subclass overrides the fixture ``make_transport`` and states the facts of
    :class:`timeoutmgr.testing.conformance.transports.suite.TransportSuite`.
    """
