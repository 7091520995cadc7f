"""Parts by name: our own from a table, so that a checkout works; plugins from entry points.

A part of a user's own program is named by its ``module:attribute``.
"""

import importlib
import os
import sys
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import EntryPoints, entry_points
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, cast

from timeoutmgr.errors import ConfigurationError, UnknownPart
from timeoutmgr.message.redaction import redact

PERSISTENCE: Final = "timeoutmgr.persistence"
TRANSPORTS: Final = "timeoutmgr.transports"
FEATURES: Final = "timeoutmgr.features.feature"
DELAYED_STORES: Final = "timeoutmgr.delayed_stores"
PARTS: Final = "timeoutmgr.parts"
"""Our parts that programs enable by a class, not by a name."""

BUILT_IN: Final = MappingProxyType(
    {
        (PERSISTENCE, "sqlite"): "timeoutmgr.persistence:SqlPersistence",
        (PERSISTENCE, "postgresql"): "timeoutmgr.persistence:SqlPersistence",
        (PERSISTENCE, "mysql"): "timeoutmgr.persistence:SqlPersistence",
        (PERSISTENCE, "mariadb"): "timeoutmgr.persistence:SqlPersistence",
        (PERSISTENCE, "mssql"): "timeoutmgr.persistence:SqlPersistence",
        (PERSISTENCE, "memory"): "timeoutmgr.persistence:MemoryPersistence",
        (TRANSPORTS, "sqlite"): "timeoutmgr.transport.sql:SqlTransport",
        (TRANSPORTS, "postgresql"): "timeoutmgr.transport.sql:SqlTransport",
        (TRANSPORTS, "mysql"): "timeoutmgr.transport.sql:SqlTransport",
        (TRANSPORTS, "mariadb"): "timeoutmgr.transport.sql:SqlTransport",
        (FEATURES, "dead-letter-queues"): "timeoutmgr.deadletter:DeadLetterQueues",
        (FEATURES, "native-delayed-delivery"): "timeoutmgr.native:NativeDelayedDelivery",
        (FEATURES, "timeout-manager"): "timeoutmgr.satellites:TimeoutManager",
        (DELAYED_STORES, "sqlite"): "timeoutmgr.persistence:SqlDelayedMessageStore",
        (DELAYED_STORES, "postgresql"): "timeoutmgr.persistence:SqlDelayedMessageStore",
        (DELAYED_STORES, "mysql"): "timeoutmgr.persistence:SqlDelayedMessageStore",
        (DELAYED_STORES, "mariadb"): "timeoutmgr.persistence:SqlDelayedMessageStore",
        (DELAYED_STORES, "mssql"): "timeoutmgr.persistence:SqlDelayedMessageStore",
        (PARTS, "delayed-delivery"): "timeoutmgr.satellites:DelayedDelivery",
        (PARTS, "unroutable"): "timeoutmgr.satellites:SettleUnroutable",
        (PARTS, "poll"): "timeoutmgr.satellites.poller:PollTimeouts",
    }
)
"""Maps group and name to ``module:attribute``. Kombu's own transports are not listed: kombu gets
every URL scheme that is not a database's."""


def load(group: str, name: str) -> Any:
    """Return the part called *name* in *group*; raise UnknownPart with the nearest name."""
    path = BUILT_IN.get((group, name))
    if path is not None:
        module, _, attribute = path.partition(":")
        return getattr(importlib.import_module(module), attribute)
    for entry in _others(group).select(name=name):
        return entry.load()
    known = names(group)
    near = get_close_matches(name, known, n=1)
    # The name may be a URL without its scheme, and so contain a password.
    raise UnknownPart(group, redact(name), near[0] if near else None, known)


def function(name: str, setting: str) -> Any:
    """Return the object that *name*, ``module:attribute``, refers to.

    The working folder is searched too, as by ``timeoutmgr run --app``. Errors name *setting*.
    """
    module, colon, attribute = name.partition(":")
    if not module or not colon or not attribute:
        raise ConfigurationError(
            f"{setting}: expected module:attribute, such as shop.ops:page_me; got {name!r:.200}"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the missing module is imported by this module: the traceback shows where
        raise ConfigurationError(
            f"{setting}: there is no module {error.name!r} for {name}; run in the folder that "
            "holds it, or install it"
        ) from error
    try:
        return attrgetter(attribute)(found)
    except AttributeError as error:
        raise ConfigurationError(f"{setting}: {name}: {error}") from error


def knows(group: str, name: str) -> bool:
    """Return whether ``load`` knows *name* in *group*."""
    return (group, name) in BUILT_IN or name in _others(group).names


def names(group: str) -> list[str]:
    """Return every name that ``load`` knows in *group*; slow, for an error or a list."""
    ours = {name for owner, name in BUILT_IN if owner == group}
    return sorted(ours | _others(group).names)


def _others(group: str) -> EntryPoints:
    return _on_path(tuple(sys.path)).select(group=group)


# A search takes a fifth of the time of a command, because it reads a file of every installed
# package. So search once for all groups, and not at all if our own parts are enough.
@lru_cache(maxsize=32)
def _on_path(_path: tuple[str, ...]) -> EntryPoints:
    return cast("EntryPoints", entry_points())  # of another class before Python 3.12
