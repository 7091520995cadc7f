"""Helpers for tests of an application: signals to wait for, and endpoints made quickly."""

from timeoutmgr.testing.inbox import Arrival, Inbox, configure
from timeoutmgr.testing.signals import RecordingTelemetry, Signal

__all__ = ["Arrival", "Inbox", "RecordingTelemetry", "Signal", "configure"]
