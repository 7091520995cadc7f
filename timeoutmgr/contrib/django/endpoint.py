"""The endpoint of a Django project: sends join the transaction of Django's own connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy
from django.utils.functional import SimpleLazyObject, empty

from timeoutmgr.contrib.django.configuration import alias, configuration
from timeoutmgr.contrib.process_endpoint import ProcessEndpoint
from timeoutmgr.database.borrowed import DriverTransaction
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.endpoint import Endpoint
from timeoutmgr.errors import CombinationRefused

if TYPE_CHECKING:
    from timeoutmgr.sender.bulk import OnSent
    from timeoutmgr.sender.composer import SendOptions, Sent, ToSend
    from timeoutmgr.sender.in_transaction import CallerSession


class DjangoEndpoint(Endpoint):
    """An endpoint whose ``send`` joins the open transaction of a Django database.

    Inside ``transaction.atomic`` the message is sent by Django's commit, and a rollback sends
    nothing. Outside of it the message is sent at once. *using* is the alias of the database.
    ``session=`` takes a connection of ``django.db`` as well.
    """

    def __init__(self, config: EndpointConfiguration, *, using: str) -> None:
        super().__init__(config)
        self._using: Final = using

    def _send_named(
        self,
        destination: str,
        message_type: str,
        body: object,
        options: SendOptions,
        session: CallerSession | None,
    ) -> Sent:
        joined = _joined(self._using) if session is None else _without_django(session)
        return super()._send_named(destination, message_type, body, options, joined)

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
        if _joined(self._using) is not None:
            raise CombinationRefused(
                f"{what} inside a transaction of Django's database {self._using!r}",
                "it acts at once, and a rollback could not undo it",
                "Call it by transaction.on_commit, or send each message with send.",
            )


def _joined(using: str) -> DriverTransaction | None:
    """Return the open transaction of the database *using*; None in autocommit mode."""
    wrapper = connections[using]
    if not _is_open(wrapper):
        return None
    wrapper.validate_thread_sharing()
    wrapper.validate_no_broken_transaction()
    wrapper.ensure_connection()
    # Django refuses on_commit outside of atomic: the wake then leaves at once.
    follow = partial(_follow_commit, wrapper.alias) if wrapper.in_atomic_block else None
    return DriverTransaction(connection=wrapper.connection, after_commit=follow)


def _is_open(wrapper: Any) -> bool:
    """Return whether a transaction is open; connect to no server for that."""
    if wrapper.in_atomic_block:
        return True
    if wrapper.connection is None:
        return not wrapper.settings_dict["AUTOCOMMIT"]
    return not wrapper.autocommit


def _without_django(session: Any) -> CallerSession:
    """Return *session*, or its open transaction if it is a connection of ``django.db``."""
    if not isinstance(session, BaseDatabaseWrapper | ConnectionProxy):
        return cast("CallerSession", session)
    using: Any = session.alias
    joined = _joined(using)
    if joined is None:
        raise CombinationRefused(
            f"session= with Django's database {using!r} in autocommit mode",
            "no transaction is open, so a rollback could not undo the send",
            f"Send inside transaction.atomic(using={using!r}), or without session.",
        )
    return joined


def _follow_commit(using: str, call: Callable[[], None]) -> None:
    # Robust: a wake that fails must not keep back the callbacks behind it.
    transaction.on_commit(call, using=using, robust=True)


def _made() -> DjangoEndpoint:
    return DjangoEndpoint(configuration(), using=alias())


_process_endpoint: Final = ProcessEndpoint(_made)
_lazy: Final[Any] = SimpleLazyObject(_process_endpoint)
endpoint: Final = cast(DjangoEndpoint, _lazy)
"""The endpoint of this process, made at its first use."""


def forget_endpoint() -> None:
    """Close the endpoint of this process, after a change of Django's settings in a test."""
    _lazy._wrapped = empty
    _process_endpoint.forget()
