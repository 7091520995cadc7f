"""Satellites, receivers on an endpoint's further queues: the Timeout Manager and other features."""

from .delayed_store.feature import DelayedDelivery
from .delivery.unroutable import SettleUnroutable
from .timeout_manager.feature import TimeoutManager

__all__ = ["DelayedDelivery", "SettleUnroutable", "TimeoutManager"]
