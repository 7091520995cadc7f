"""Receivers on an endpoint's own queues: the Timeout Manager and its parts."""

from .feature import TimeoutManager

__all__ = ["TimeoutManager"]
