"""Celery: one line makes the delays of an app durable."""

from timeoutmgr.contrib.celery.delays import DurableDelays

__all__ = ["DurableDelays"]
