"""The extension, which several apps may share."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from flask import Flask, current_app
from flask.cli import ScriptInfo

from timeoutmgr.contrib.default_database import configuration_in
from timeoutmgr.contrib.flask.commands import pass_through
from timeoutmgr.contrib.handler_registry import HandlerRegistry
from timeoutmgr.contrib.process_endpoint import ProcessEndpoint
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.errors import ConfigurationError

SETTING: Final = "TIMEOUTMGR"
_EXTENSION: Final = "timeoutmgr"
_SQLALCHEMY: Final = "sqlalchemy"
"""The name of Flask-SQLAlchemy among the extensions of an app."""


@dataclass(frozen=True, slots=True)
class AppTimeouts:
    """The part of the extension that belongs to one *app*."""

    app: Flask
    registry: HandlerRegistry
    endpoint: ProcessEndpoint[Endpoint]

    def configuration(self) -> EndpointConfiguration:
        """Return a new configuration. Raises ConfigurationError."""
        given = self.app.config.get(SETTING)
        config = configuration_in(given, f'app.config["{SETTING}"]', self._database_url)
        self.registry.add_to(config, self.app.app_context, self._async_app_context)
        return config

    @asynccontextmanager
    async def _async_app_context(self) -> AsyncIterator[None]:
        with self.app.app_context():  # a context variable, so that it is the task's own
            yield

    def _database_url(self) -> str | None:
        """Return the URL of the default database of Flask-SQLAlchemy; None without it."""
        sqlalchemy: Any = self.app.extensions.get(_SQLALCHEMY)
        if sqlalchemy is None:
            return None
        with self.app.app_context():
            url: str = sqlalchemy.engine.url.render_as_string(hide_password=False)
        return url


class FlaskTimeouts:
    """Timeouts of Flask apps: ``FlaskTimeouts(app)``, or ``init_app`` later.

    ``app.config["TIMEOUTMGR"]`` has the keys of a settings file. Transport and persistence default
    to the database of Flask-SQLAlchemy, if the app has that extension.
    """

    def __init__(self, app: Flask | None = None) -> None:
        self._registry: Final = HandlerRegistry()
        self.handler: Final = self._registry.handler
        """Returns a decorator that registers a handler; the handler runs in the app's context."""
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Add the extension, and the command ``flask timeoutmgr``, to *app*."""
        made: ProcessEndpoint[Endpoint] = ProcessEndpoint(lambda: Endpoint(own.configuration()))
        own = AppTimeouts(app, self._registry, made)
        app.extensions[_EXTENSION] = own
        app.cli.add_command(pass_through(f"{__package__}:{configuration.__name__}"))

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the current app, created at its first use, once in each process.

        Raises ConfigurationError.
        """
        return _of(current_app).endpoint()


def configuration() -> EndpointConfiguration:
    """Return a new configuration of the app that ``flask`` would run (``FLASK_APP``)."""
    app = ScriptInfo(app_import_path=os.environ.get("FLASK_APP")).load_app()
    return _of(app).configuration()


def _of(app: Flask) -> AppTimeouts:
    found = app.extensions.get(_EXTENSION)
    if not isinstance(found, AppTimeouts):
        raise ConfigurationError(
            f"the Flask app {app.name!r} has no timeouts; call FlaskTimeouts().init_app(app)"
        )
    return found
