"""Helpers for tests of an application: signals to wait for, and endpoints made quickly."""

from timeoutmgr.testing.endpoints import configure
from timeoutmgr.testing.inbox import Arrival, Inbox
from timeoutmgr.testing.signals import RecordingTelemetry, Signal

__all__ = ["Arrival", "Inbox", "RecordingTelemetry", "Signal", "configure"]
