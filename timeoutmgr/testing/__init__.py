"""Helpers for tests of an application: a kit without servers, and endpoints made quickly."""

from timeoutmgr.testing.inbox import Arrival, Inbox, configure
from timeoutmgr.testing.kit.fake_context import FakeContext
from timeoutmgr.testing.kit.kit import TimeoutKit
from timeoutmgr.testing.kit.messages import ObservedFailure, ObservedMessage
from timeoutmgr.testing.signals import RecordingTelemetry, Signal

__all__ = [
    "Arrival",
    "FakeContext",
    "Inbox",
    "ObservedFailure",
    "ObservedMessage",
    "RecordingTelemetry",
    "Signal",
    "TimeoutKit",
    "configure",
]
