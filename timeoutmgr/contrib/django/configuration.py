"""The endpoint's configuration from Django's settings and the installed apps' handlers."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import django
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.apps import apps
from django.conf import settings
from django.core import mail
from django.db import Error, close_old_connections, connections
from django.utils.module_loading import autodiscover_modules

from timeoutmgr.contrib.default_database import configuration_in
from timeoutmgr.contrib.django.databases import database_url, is_in_memory
from timeoutmgr.contrib.handler_registry import HandlerRegistry
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.errors import ConfigurationError, HandlerFailed

SETTING: Final = "TIMEOUTMGR"
_USING: Final = "using"
_MODULES: Final = ("timeouts", "handlers")


@contextmanager
def _usable_connections() -> Iterator[None]:
    """Close connections that are broken or too old, as Django does around a request."""
    close_old_connections()
    try:
        with ended_transactions():
            yield
    finally:
        close_old_connections()


@asynccontextmanager
async def _own_connections() -> AsyncIterator[None]:
    """Give a coroutine its own ORM thread, and so connections, as Django does for a request.

    In a shared thread, the transaction that one coroutine leaves open would contain the rows of
    other coroutines. The connections are closed at the end, when the thread ends.
    """
    async with ThreadSensitiveContext():
        end = sync_to_async(_end_connections)
        try:
            yield
        except BaseException as error:
            await end(error)
            raise
        await end(None)


def _end_connections(error: BaseException | None) -> None:
    """Close the connections of this thread; an open transaction fails the handler."""
    try:
        with ended_transactions():
            if error is not None:
                raise error
    finally:
        connections.close_all()


@contextmanager
def ended_transactions() -> Iterator[None]:
    """Roll back the transactions that the block leaves open, and raise HandlerFailed.

    An error of the block gets the sentence as a note. A transaction that was open before (a test's,
    say) stays open.
    """
    outer = [one for one in connections.all(initialized_only=True) if one.in_atomic_block]
    try:
        yield
    except BaseException as error:
        for left in _rolled_back(outer):
            error.add_note(left)
        raise
    for left in _rolled_back(outer):
        raise HandlerFailed(RuntimeError(left))


def _rolled_back(outer: Sequence[Any]) -> list[str]:
    """Roll back and close connections in a transaction, except *outer*; return a description."""
    left = []
    for one in connections.all(initialized_only=True):
        if one.connection is None or one in outer:
            continue
        if one.in_atomic_block or one.get_autocommit() != one.settings_dict["AUTOCOMMIT"]:
            # Inside atomic, Django refuses a rollback and keeps the closed connection.
            one.in_atomic_block = one.closed_in_transaction = False
            with suppress(Error):
                one.rollback()
            one.close()
            left.append(
                f"it left a transaction open in Django's database {one.alias!r}, which was rolled "
                "back; use `with transaction.atomic():`, or end with set_autocommit(True)"
            )
    return left


_registry: Final = HandlerRegistry()
handler: Final = _registry.handler
"""Returns a decorator that registers a function as a handler of a message type."""


def configuration() -> EndpointConfiguration:
    """Return a new configuration, with the handlers of all installed apps.

    Sets up Django if needed. Raises ConfigurationError.
    """
    return _configured(database_settings)


def configuration_to_send() -> EndpointConfiguration:
    """Return ``configuration()``, for an endpoint that uses the database in this process.

    Raises Django's error in a test that may not use Django's database.
    """
    return _configured(_usable_database)


def _configured(database: Callable[[], Mapping[str, Any]]) -> EndpointConfiguration:
    if not apps.ready:
        django.setup()
    autodiscover_modules(*_MODULES)
    given = {**settings_dict()}
    given.pop(_USING, None)
    config = configuration_in(given, SETTING, lambda: database_url(database()))
    _registry.add_to(config, _usable_connections, _own_connections)
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


def is_test_environment() -> bool:
    """Return whether a test runner has set up Django for tests, by the documented sign."""
    return "outbox" in vars(mail)


def database_settings() -> dict[str, Any]:
    """Return the settings of the database as they are now: tests rename it."""
    found: dict[str, Any] = connections[alias()].settings_dict
    return found


def _usable_database() -> dict[str, Any]:
    """Return the settings; let Django refuse a test that may not use the database.

    Django creates no test database for such a test: its messages would go into the real database.
    Raises ConfigurationError for a database in memory, to which only Django can connect.
    """
    if is_test_environment():
        connections[alias()].ensure_connection()
    found = database_settings()
    if is_in_memory(found):
        raise ConfigurationError(
            f"Django's database {alias()!r} is in memory, as {found['NAME']}, where only Django "
            'reaches it; name a file, for tests by "TEST": {"NAME": "test.sqlite3"} in DATABASES'
        )
    return found
