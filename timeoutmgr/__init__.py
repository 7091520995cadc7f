"""Durable delayed message delivery for Python, on kombu transports that keep it.

The public names of the core are here; persistences are in ``timeoutmgr.persistence``, the
Timeout Manager in ``timeoutmgr.satellites``.
"""

from pathlib import Path as _Path

_here = _Path(__file__).parent
if not (_here / "persistence").is_dir():  # a checkout: persistence/ and satellites/ stand beside us
    __path__.append(str(_here.parent))

from timeoutmgr._version import __version__
from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    OnConflict,
    RepeatKind,
    TimeoutState,
    TransactionMode,
)
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.endpoint.handlers import HandlerContext
from timeoutmgr.endpoint.timeouts import Timeouts, TimeoutView
from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.critical import (
    CriticalAction,
    CriticalErrorContext,
)
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.sender.bulk import BulkInterrupted, ToSend
from timeoutmgr.sender.composer import SendOptions, Sent
from timeoutmgr.transport.sql import register as _register

_register()  # kombu.Connection("timeoutmgr+sqlite:///queues.db") works from here on

__all__ = [
    "BulkInterrupted",
    "CancelResult",
    "ChangeResult",
    "CriticalAction",
    "CriticalErrorContext",
    "DelayedDeliverySettings",
    "Endpoint",
    "EndpointConfiguration",
    "HandlerContext",
    "Limits",
    "OnConflict",
    "RecoverabilitySettings",
    "RepeatKind",
    "SendOptions",
    "Sent",
    "TimeoutState",
    "TimeoutView",
    "Timeouts",
    "ToSend",
    "TransactionMode",
    "__version__",
]
