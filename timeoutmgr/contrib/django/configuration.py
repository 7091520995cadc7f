"""The endpoint's configuration, from Django's settings and the handlers of the installed apps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import django
from django.apps import apps
from django.conf import settings
from django.db import close_old_connections, connections
from django.utils.module_loading import autodiscover_modules

from timeoutmgr.contrib.default_database import configuration_in
from timeoutmgr.contrib.django.databases import database_url
from timeoutmgr.contrib.handler_registry import HandlerRegistry
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.errors import ConfigurationError

SETTING: Final = "TIMEOUTMGR"
_USING: Final = "using"
_MODULES: Final = ("timeouts", "handlers")


@contextmanager
def _usable_connections() -> Iterator[None]:
    """Close connections that are broken or too old, as Django does around a request."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


_registry: Final = HandlerRegistry()
handler: Final = _registry.handler
"""Returns a decorator that registers a function as a handler of a message type."""


def configuration() -> EndpointConfiguration:
    """Return a new configuration, with the handlers of all installed apps.

    Django is set up if it is not yet. Raises ConfigurationError.
    """
    if not apps.ready:
        django.setup()
    autodiscover_modules(*_MODULES)
    given = {**settings_dict()}
    given.pop(_USING, None)
    config = configuration_in(given, SETTING, lambda: database_url(_database()))
    _registry.add_to(config, _usable_connections)
    return config


def alias() -> str:
    """Return the alias of the database whose transactions a send joins."""
    return str(settings_dict().get(_USING, "default"))


def settings_dict() -> dict[str, Any]:
    """Return the setting; raise ConfigurationError if it is not a dict, or missing."""
    try:
        given = settings.TIMEOUTMGR
    except AttributeError:
        raise ConfigurationError(
            f"Django's settings have no {SETTING}; add "
            f'{SETTING} = {{"endpoint": "shop", "features": ["timeout-manager"]}}'
        ) from None
    if not isinstance(given, dict):
        raise ConfigurationError(f"{SETTING} in Django's settings is a dict, got {given!r:.80}")
    return given


def _database() -> dict[str, Any]:
    """Return the settings of the database as they are now: tests rename it."""
    found: dict[str, Any] = connections[alias()].settings_dict
    return found
