"""Orders to a timeout manager to forget a saga's timeouts."""

from dataclasses import dataclass, field

from timeoutmgr.errors import ConfigurationError, InvalidMessage, Unsupported
from timeoutmgr.instants import Micros
from timeoutmgr.message import Outgoing
from timeoutmgr.routing import clear_timeouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearing:
    """The timeout manager that an endpoint's orders to clear go to, if there is one."""

    endpoint: str
    address: str | None = None
    is_native: bool = False
    """Whether a broker delays the endpoint's messages."""
    is_listed: bool = True
    """Whether the manager can find the timeouts of a saga; a delayed message store cannot."""

    def order(self, saga_id: str, sent: Micros, message_id: str) -> "ClearOrder":
        """Return an order to clear *saga_id*; raise where no manager takes it."""
        if self.address is None and self.is_native:
            raise Unsupported(
                "clearing a saga's timeouts with native delayed delivery",
                "the broker holds the messages, and cannot find those of a saga",
                "Have the saga ignore what comes too late; or enable TimeoutManager too and send "
                "with cancellable=True and fallback_to_store",
            )
        if self.address is None or not self.is_listed:
            raise ConfigurationError(
                f"endpoint {self.endpoint!r} has no timeout manager, so there is nothing to clear"
            )
        if not saga_id:
            raise InvalidMessage(
                "Invalid saga id specified, clear timeouts is only supported for saga instances"
            )
        return ClearOrder(self.address, saga_id, sent, message_id)


@dataclass(slots=True)
class ClearOrder:
    """An order to clear the timeouts of *saga_id* that were *sent* until then.

    *kept* are ids of timeouts that the handler which gives the order sends after it. A repeat of
    the handler gives a later order, and sends these timeouts again under the same ids: the store
    would take them for redeliveries of timeouts that the later order cleared, and drop them.
    """

    address: str
    saga_id: str
    sent: Micros
    message_id: str
    kept: list[str] = field(default_factory=list)

    def outgoing(self) -> Outgoing:
        """Return the control message."""
        return clear_timeouts(self.saga_id, self.address, self.message_id, self.sent, self.kept)
