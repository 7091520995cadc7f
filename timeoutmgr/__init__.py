"""Durable delayed message delivery for Python, on any kombu transport.

The public names of the core are here; persistences are in ``timeoutmgr.persistence``, the
Timeout Manager in ``timeoutmgr.satellites``.
"""

from pathlib import Path as _Path

_here = _Path(__file__).parent
if not (_here / "persistence").is_dir():  # a checkout: persistence/ and satellites/ stand beside us
    __path__.append(str(_here.parent))

from timeoutmgr._version import __version__  # noqa: E402 - the path comes first, see above
from timeoutmgr.config import EndpointConfiguration  # noqa: E402
from timeoutmgr.contracts import (  # noqa: E402
    CancelResult,
    ChangeResult,
    TimeoutState,
    TransactionMode,
)
from timeoutmgr.endpoint import Endpoint  # noqa: E402
from timeoutmgr.handlers import HandlerContext  # noqa: E402
from timeoutmgr.outgoing import SendOptions, Sent  # noqa: E402
from timeoutmgr.resilience.critical import (  # noqa: E402
    CriticalAction,
    CriticalErrorContext,
)
from timeoutmgr.resilience.recovery import RecoverabilitySettings  # noqa: E402
from timeoutmgr.timeouts import Timeouts, TimeoutView  # noqa: E402
from timeoutmgr.transport.sql import registration as _registration  # noqa: E402
from timeoutmgr.validation import Limits  # noqa: E402

_registration.register()  # kombu.Connection("timeoutmgr+sqlite:///queues.db") works from here on

__all__ = [
    "CancelResult",
    "ChangeResult",
    "CriticalAction",
    "CriticalErrorContext",
    "Endpoint",
    "EndpointConfiguration",
    "HandlerContext",
    "Limits",
    "RecoverabilitySettings",
    "SendOptions",
    "Sent",
    "TimeoutState",
    "TimeoutView",
    "Timeouts",
    "TransactionMode",
    "__version__",
]
