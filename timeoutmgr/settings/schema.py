"""The settings: their TOML keys, their environment names and their types.

The keys of a table are the keyword arguments of the part that it configures, so that a plugin's
feature or persistence is configured like our own.
"""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final

from timeoutmgr import plugins
from timeoutmgr.contracts import TransactionMode
from timeoutmgr.database import DatabaseSettings
from timeoutmgr.endpoint.canary import CanarySettings
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.features.delayed_delivery import delayed_delivery
from timeoutmgr.message.validation import Limits
from timeoutmgr.resilience.critical import CriticalAction
from timeoutmgr.resilience.recovery import RecoverabilitySettings
from timeoutmgr.settings.conversion import can_convert

PREFIX: Final = "TIMEOUTMGR_"

NOT_SETTINGS: Final = ("TIMEOUTMGR_DATA", "TIMEOUTMGR_CRASHPOINT")
"""Our variables that other modules read."""
STORE_PREFIX: Final = "TIMEOUTMGR_STORE_"
"""Begins variables that name stores for the data pipeline."""
NOT_SETTINGS_PREFIXES: Final = ("TIMEOUTMGR_TEST_", "TIMEOUTMGR_CLI_", STORE_PREFIX)

TOP: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "endpoint": str,
        "transport": str,
        "persistence": str,
        "features": tuple[str, ...],
        "error_queue": str,
        "transaction_mode": TransactionMode,
        "accept_loss": bool,
        "send_only": bool,
        "concurrency": int,
        "handler_batch": int,
        "async_concurrency": int,
        "shutdown_timeout": timedelta,
        "install": bool,
        "check_destinations": bool,
        "critical_error_action": CriticalAction,
        "critical_error_hooks": tuple[str, ...],
        "external_timeout_manager": str,
        "disable_timeout_manager": bool,
        "middleware": tuple[str, ...],
        "send_middleware": tuple[str, ...],
    }
)
"""Keys outside tables, and their types."""

TRANSPORT_OPTIONS: Final = "transport_options"
PERSISTENCE_OPTIONS: Final = "persistence_options"

DELAYED_DELIVERY: Final = "delayed_delivery"

RECURRING: Final = "recurring"
"""Table of tables: one for each recurring timeout, by its name."""

BUILT: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "recoverability": RecoverabilitySettings,
        "limits": Limits,
        "database": DatabaseSettings,
        "canary": CanarySettings,
        DELAYED_DELIVERY: delayed_delivery,
    }
)
"""Tables that make one settings object of the core."""
_OTHER_TABLES: Final = (*BUILT, TRANSPORT_OPTIONS, PERSISTENCE_OPTIONS)
"""Tables that set up no feature."""

# Set by a key outside the table, or, for an owner, never: an owner names one process of the
# processes that share the settings.
_NOT_OPTIONS: Final = frozenset({"accept_loss", "owner", "settings"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """A keyword argument that a settings file can give; *inside* is the argument around it."""

    hint: Any
    default: Any
    inside: str | None = None


def environment_name(*keys: str) -> str:
    """Return the environment twin of a key, which follows the name of its table, if any."""
    return PREFIX + re.sub(r"[^A-Z0-9]", "_", "_".join(keys).upper())


def is_setting(variable: str) -> bool:
    """Return whether an environment variable is meant as a setting."""
    if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
        return False
    return not variable.startswith(NOT_SETTINGS_PREFIXES)


def nearest(key: str, known: list[str]) -> str | None:
    """Return the known key that is nearest to *key*."""
    found = get_close_matches(key, known, n=1)
    return found[0] if found else None


def table_names() -> list[str]:
    """Return the tables that a settings file may have; slow, for an error or a list."""
    return [*plugins.names(plugins.FEATURES), *_OTHER_TABLES]


def is_table(name: str) -> bool:
    """Return whether a settings file may have the table *name*."""
    return name in _OTHER_TABLES or is_feature(name)


def is_feature(table: str) -> bool:
    """Return whether *table* sets up a feature."""
    other = table in _OTHER_TABLES or table == RECURRING
    return not other and plugins.knows(plugins.FEATURES, table)


@lru_cache(maxsize=32)
def parameters(part: Callable[..., Any]) -> Mapping[str, Parameter]:
    """Return the keyword arguments of *part* that a settings file can give.

    An argument called ``settings``, whose type is a dataclass, counts with each of its fields.
    """
    found: dict[str, Parameter] = {}
    hints = _hints(part)
    for argument in inspect.signature(part).parameters.values():
        hint = hints.get(argument.name)
        if argument.kind is not inspect.Parameter.KEYWORD_ONLY or hint is None:
            continue
        nested = _dataclass_in(hint)
        if argument.name == "settings" and nested is not None:
            fields = parameters(nested).items()
            found |= {
                name: Parameter(field.hint, field.default, inside="settings")
                for name, field in fields
                if name not in found
            }
        elif argument.name not in _NOT_OPTIONS and can_convert(hint):
            # A separate argument wins over the field of the same name.
            inner = found.pop(argument.name, None)
            default = _default(part, argument) if inner is None else inner.default
            found[argument.name] = Parameter(hint, default)
    return MappingProxyType(found)


def build(part: Callable[..., Any], given: Mapping[str, Any], *before: Any) -> Any:
    """Return the result of *part* for *before* and the values *given* for its parameters.

    Raises ConfigurationError for a parameter that is required, and not given.
    """
    for name, argument in inspect.signature(part).parameters.items():
        is_required = argument.kind is argument.KEYWORD_ONLY and argument.default is argument.empty
        if is_required and name not in given and name != "settings":
            raise ConfigurationError(f"needs {name}")
    return part(*before, **arguments(part, given))


def arguments(part: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values *given* as keyword arguments: fields of ``settings`` put together."""
    known = parameters(part)
    plain = {name: value for name, value in given.items() if known[name].inside is None}
    inner = {name: value for name, value in given.items() if known[name].inside is not None}
    if not inner:
        return plain
    nested = _dataclass_in(_hints(part)["settings"])
    assert nested is not None, "it is where the inner parameters were found"
    return {**plain, "settings": nested(**inner)}


def _hints(part: Callable[..., Any]) -> dict[str, Any]:
    owner = part.__init__ if inspect.isclass(part) else part
    try:
        return typing.get_type_hints(part if dataclasses.is_dataclass(part) else owner)
    except NameError as error:
        raise ConfigurationError(
            f"the annotations of {part!r} cannot be read ({error}), so no settings file can give "
            "its arguments; import the names outside 'if TYPE_CHECKING'"
        ) from error


def _dataclass_in(hint: Any) -> type | None:
    arms = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else [hint]
    for arm in arms:
        if arm is not NoneType and isinstance(arm, type) and dataclasses.is_dataclass(arm):
            return arm
    return None


def _default(part: Callable[..., Any], argument: inspect.Parameter) -> Any:
    if dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            if field.name == argument.name and field.default_factory is not dataclasses.MISSING:
                return field.default_factory()
    return None if argument.default is inspect.Parameter.empty else argument.default
