"""Native delayed delivery: RabbitMQ itself keeps a delayed message until it is due."""

from timeoutmgr.native.feature import NativeDelayedDelivery
from timeoutmgr.native.levels import MAX_DELAY

__all__ = ["MAX_DELAY", "NativeDelayedDelivery"]
