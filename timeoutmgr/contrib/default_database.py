"""A configuration from a framework's settings; the framework's database is the default."""

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.settings.file import configuration_from
from timeoutmgr.settings.schema import environment_name

_MANAGER: Final = "timeout-manager"


def configuration_in(
    given: object, setting: str, database_url: Callable[[], str | None]
) -> EndpointConfiguration:
    """Return the configuration of the dict *given*, which has the keys of a settings file.

    If neither the dict nor the environment sets a transport or persistence, it is the database at
    *database_url*. Raises ConfigurationError, which names *setting*.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{setting} is a dict with the keys of a settings file, got {given!r:.80}; begin with "
            f'{setting} = {{"endpoint": "shop", "features": ["{_MANAGER}"]}}'
        )
    values: dict[str, Any] = dict(given)
    for key in ("transport", "persistence"):
        is_given = key in values or os.environ.get(environment_name(key))
        if not is_given and _is_needed(key, values):
            url = database_url()
            values |= {} if url is None else {key: url}
    return configuration_from(overrides=values)


def _is_needed(key: str, values: Mapping[str, Any]) -> bool:
    given = values.get("features", os.environ.get(environment_name("features")))
    return key == "transport" or (isinstance(given, Collection) and _MANAGER in given)
