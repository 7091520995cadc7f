"""Receivers on an endpoint's own queues: the Timeout Manager, and the parts of other features."""

from .delayed_store.feature import DelayedDelivery
from .delivery.unroutable import SettleUnroutable
from .timeout_manager.feature import TimeoutManager

__all__ = ["DelayedDelivery", "SettleUnroutable", "TimeoutManager"]
