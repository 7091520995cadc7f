"""Make ``kombu.Connection("timeoutmgr+sqlite:///…")`` work, without importing a database."""

from typing import Final

ALIAS: Final = "timeoutmgr"
_CLASS: Final = "timeoutmgr.transport.sql.kombu_transport:Transport"


def register() -> bool:
    """Tell kombu of the SQL queue; return False where there is no kombu. Twice is fine."""
    try:
        from kombu.transport import TRANSPORT_ALIASES
    except ImportError:
        return False
    TRANSPORT_ALIASES[ALIAS] = _CLASS
    return True
