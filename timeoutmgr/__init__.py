"""Durable delayed message delivery for Python, on kombu transports that keep their messages.

This module exports the public names of the core. Persistences are in ``timeoutmgr.persistence``,
and the Timeout Manager is in ``timeoutmgr.satellites``.
"""

from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

_here = _Path(__file__).parent
if not (_here / "persistence").is_dir():  # a checkout has them beside this folder
    __path__.append(str(_here.parent))

from timeoutmgr._version import __version__
from timeoutmgr.transport.sql import register as _register

if TYPE_CHECKING:
    from timeoutmgr.contracts import (
        CancelResult,
        ChangeResult,
        OnConflict,
        RepeatKind,
        TimeoutState,
        TransactionMode,
    )
    from timeoutmgr.database.borrowed import DriverTransaction
    from timeoutmgr.endpoint.async_context import AsyncHandlerContext
    from timeoutmgr.endpoint.async_endpoint import AsyncEndpoint
    from timeoutmgr.endpoint.async_timeouts import AsyncTimeouts
    from timeoutmgr.endpoint.canary import CanarySettings
    from timeoutmgr.endpoint.configuration import EndpointConfiguration
    from timeoutmgr.endpoint.endpoint import Endpoint
    from timeoutmgr.endpoint.handlers import HandlerContext
    from timeoutmgr.endpoint.list_handlers import BatchContext
    from timeoutmgr.endpoint.timeouts import Timeouts, TimeoutView
    from timeoutmgr.features.delayed_delivery import DelayedDeliverySettings
    from timeoutmgr.message.validation import Limits
    from timeoutmgr.resilience.critical import CriticalAction, CriticalErrorContext
    from timeoutmgr.resilience.recovery import RecoverabilitySettings
    from timeoutmgr.sender.bulk import BulkInterrupted
    from timeoutmgr.sender.composer import SendOptions, Sent, ToSend

_register()  # kombu.Connection("timeoutmgr+sqlite:///queues.db") works from here on

__all__ = [
    "AsyncEndpoint",
    "AsyncHandlerContext",
    "AsyncTimeouts",
    "BatchContext",
    "BulkInterrupted",
    "CanarySettings",
    "CancelResult",
    "ChangeResult",
    "CriticalAction",
    "CriticalErrorContext",
    "DelayedDeliverySettings",
    "DriverTransaction",
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

_MODULES = {
    "contracts": "CancelResult ChangeResult OnConflict RepeatKind TimeoutState TransactionMode",
    "database.borrowed": "DriverTransaction",
    "endpoint.async_context": "AsyncHandlerContext",
    "endpoint.async_endpoint": "AsyncEndpoint",
    "endpoint.async_timeouts": "AsyncTimeouts",
    "endpoint.canary": "CanarySettings",
    "endpoint.configuration": "EndpointConfiguration",
    "endpoint.endpoint": "Endpoint",
    "endpoint.handlers": "HandlerContext",
    "endpoint.list_handlers": "BatchContext",
    "endpoint.timeouts": "TimeoutView Timeouts",
    "features.delayed_delivery": "DelayedDeliverySettings",
    "message.validation": "Limits",
    "resilience.critical": "CriticalAction CriticalErrorContext",
    "resilience.recovery": "RecoverabilitySettings",
    "sender.bulk": "BulkInterrupted",
    "sender.composer": "SendOptions Sent ToSend",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    # Loaded on demand, so that a program that imports only the contracts does not load SQLAlchemy.
    if name == "errors":  # "except timeoutmgr.errors.InvalidMessage" works without another import
        return _import_module(f"{__name__}.errors")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = vars(_import_module(f"{__name__}.{_MODULE_OF[name]}"))[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
