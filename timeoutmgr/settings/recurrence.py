"""The tables ``[recurring.<name>]`` of a settings file: one for each recurring timeout."""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.errors import ConfigurationError, UnknownSetting
from timeoutmgr.settings.conversion import Given, convert
from timeoutmgr.settings.schema import RECURRING, nearest

KEYS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "type": str,
        "body": None,
        "every": str | timedelta,
        "destination": str,
        "catch_up": str,
        "headers": Mapping[str, str],
    }
)
"""Keys of a table, and their types; a body is of any type."""
_NEEDED: Final = ("type", "every")


def add_recurring(config: EndpointConfiguration, name: str, given: Given) -> None:
    """Add the recurring timeout *name*, which the table *given* defines, to *config*."""
    if not isinstance(given.value, Mapping):
        raise given.wrong(f"a table [{RECURRING}.{name}]")
    table: Mapping[str, Any] = given.value
    for key in table:
        if key not in KEYS:
            known = [*KEYS]
            raise UnknownSetting(
                f"{given.key}.{key}", given.source, nearest(str(key), known), known
            )
    missing = [key for key in _NEEDED if key not in table]
    if missing:
        raise ConfigurationError(
            f"[{given.key}] in {given.source} has no {' and no '.join(missing)}"
        )
    values = {key: _converted(given, key, value) for key, value in table.items() if key != "body"}
    config.recurring(name, values.pop("type"), table.get("body"), **values)


def _converted(table: Given, key: str, value: Any) -> Any:
    inner = Given(key=f"{table.key}.{key}", value=value, source=table.source, shown=table.shown)
    return convert(inner, KEYS[key])
