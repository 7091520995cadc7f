"""Receivers on an endpoint's own queues: the Timeout Manager, and the parts of other features."""

from .delayed_feature import DelayedDelivery
from .feature import TimeoutManager
from .unroutable import SettleUnroutable

__all__ = ["DelayedDelivery", "SettleUnroutable", "TimeoutManager"]
