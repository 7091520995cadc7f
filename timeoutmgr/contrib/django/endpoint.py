"""The endpoint of a Django project: sends join the transaction of Django's own connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from django.db.backends.base.base import NO_DB_ALIAS
from django.utils.functional import LazyObject

from timeoutmgr.contrib.django.configuration import (
    alias,
    configuration_to_send,
    database_settings,
    is_test_environment,
)
from timeoutmgr.contrib.django.transactions import open_transaction, without_django
from timeoutmgr.contrib.process_endpoint import ProcessEndpoint
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.errors import CombinationRefused, ConfigurationError

if TYPE_CHECKING:
    from timeoutmgr.sender.bulk import OnSent
    from timeoutmgr.sender.composer import Sent, ToSend
    from timeoutmgr.sender.in_transaction import CallerSession


class DjangoEndpoint(Endpoint):
    """An endpoint whose ``send`` joins the open transaction of a Django database.

    Inside ``transaction.atomic``, Django's commit sends the message, and a rollback sends nothing.
    Outside, the message is sent at once. *using* is the alias of the database. ``session=`` takes a
    connection of ``django.db`` as well.
    """

    def __init__(self, config: EndpointConfiguration, *, using: str) -> None:
        super().__init__(config)
        self._using: Final = using

    @property
    def has_broker(self) -> bool:
        """Whether the queues are on a broker: then only a stored timeout joins a transaction."""
        return self._parts.settings.transport.database is None

    def _send_named(self, message: ToSend, session: CallerSession | None) -> Sent:
        joined = open_transaction(self._using) if session is None else without_django(session)
        return super()._send_named(message, joined)

    def send_many(self, messages: Iterable[ToSend], *, on_sent: OnSent | None = None) -> int:
        """Send many messages, as ``Endpoint.send_many``; refused inside ``transaction.atomic``."""
        self._refuse_inside("send_many")
        return super().send_many(messages, on_sent=on_sent)

    def store_many(self, messages: Iterable[ToSend], *, on_sent: OnSent | None = None) -> int:
        """Store many, as ``Endpoint.store_many``; refused inside ``transaction.atomic``."""
        self._refuse_inside("store_many")
        return super().store_many(messages, on_sent=on_sent)

    def clear_timeouts(self, saga_id: str) -> None:
        """Clear a saga, as ``Endpoint.clear_timeouts``; refused inside ``transaction.atomic``."""
        self._refuse_inside("clear_timeouts")
        super().clear_timeouts(saga_id)

    def _refuse_inside(self, what: str) -> None:
        """Refuse a call that a rollback could not undo."""
        if open_transaction(self._using) is not None:
            raise CombinationRefused(
                f"{what} inside a transaction of Django's database {self._using!r}",
                "it acts at once, and a rollback could not undo it",
                "Call it by transaction.on_commit, or send each message with send.",
            )


def _made() -> DjangoEndpoint:
    return DjangoEndpoint(configuration_to_send(), using=alias())


def _place(database: Mapping[str, Any]) -> tuple[Any, ...]:
    place = (database.get(key) for key in ("ENGINE", "HOST", "PORT", "USER", "NAME"))
    # pytest collects before it sets up Django, and its inspections may create the endpoint.
    return (is_test_environment(), *place)


_process_endpoint: Final = ProcessEndpoint(_made, place=lambda: _place(database_settings()))


class _LazyEndpoint(LazyObject):  # type: ignore[misc]  # Django ships no types
    """Stands for the endpoint that this process has at the moment of use."""

    _wrapped = property(lambda _self: _process_endpoint())
    # Test runners ask each name in a module for its class before a test database exists.
    __class__ = property(lambda _self: DjangoEndpoint)


endpoint: Final = cast(DjangoEndpoint, _LazyEndpoint())
"""The endpoint of this process, created at its first use."""


def forget_endpoint() -> None:
    """Close the endpoint of this process, after a change of Django's settings in a test."""
    _process_endpoint.forget()


def follow_connection(connection: Any, **_signal: Any) -> None:
    """Close the endpoint of this process if Django's new *connection* leads elsewhere.

    Django renames the database for a test run, and creates, copies and drops it over a separate
    connection; a connection of the endpoint would block that.
    """
    with suppress(ConfigurationError):  # an error of the settings, which the system check reports
        if connection.alias in (NO_DB_ALIAS, alias()):
            _process_endpoint.forget_unless_at(_place(connection.settings_dict))
