"""The outlet of an endpoint: the parts with which a program sends messages."""

from collections.abc import Callable
from dataclasses import dataclass

from timeoutmgr.contracts import Clock, Transport
from timeoutmgr.errors import SchemaMissing
from timeoutmgr.sender.composer import Composer
from timeoutmgr.sender.sender import Sender
from timeoutmgr.transport.capabilities import DirectStorage
from timeoutmgr.transport.delivery_policy import PLAIN_SENDING, SendingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """The parts of one endpoint that take part in sending.

    *manager_address* is the queue of the timeout manager; *direct* stores past that queue.
    *missing_schema* returns which tables an error is about, if they are missing or too old.
    """

    endpoint: str
    transport: Transport
    clock: Clock
    new_id: Callable[[], str]
    check_destinations: bool
    composer: Composer
    sender: Sender
    missing_schema: Callable[[Exception], SchemaMissing | None]
    manager_address: str | None = None
    direct: DirectStorage | None = None
    policy: SendingPolicy = PLAIN_SENDING
