"""The open transaction of a Django database, which sends can join."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from timeoutmgr.database.borrowed import DriverTransaction
from timeoutmgr.errors import CombinationRefused

if TYPE_CHECKING:
    from timeoutmgr.sender.in_transaction import CallerSession


def open_transaction(using: str) -> DriverTransaction | None:
    """Return the open transaction of the database *using*; None in autocommit mode."""
    wrapper = connections[using]
    if not _is_open(wrapper):
        return None
    wrapper.validate_thread_sharing()
    wrapper.validate_no_broken_transaction()
    wrapper.ensure_connection()
    # Django refuses on_commit outside atomic: then wake at once.
    follow = partial(_follow_commit, wrapper.alias) if wrapper.in_atomic_block else None
    return DriverTransaction(connection=wrapper.connection, after_commit=follow)


def _is_open(wrapper: Any) -> bool:
    """Return whether a transaction is open, without connecting to a server."""
    if wrapper.in_atomic_block:
        return True
    if wrapper.connection is None:
        return not wrapper.settings_dict["AUTOCOMMIT"]
    return not wrapper.autocommit


def require_open(using: str) -> DriverTransaction:
    """Return the open transaction of the database *using*. Raises CombinationRefused."""
    joined = open_transaction(using)
    if joined is None:
        raise CombinationRefused(
            f"session= with Django's database {using!r} in autocommit mode",
            "no transaction is open, so a rollback could not undo the send",
            f"Send inside transaction.atomic(using={using!r}), or without session.",
        )
    return joined


def without_django(session: Any) -> CallerSession:
    """Return *session*, or its open transaction if it is a connection of ``django.db``."""
    if not isinstance(session, BaseDatabaseWrapper | ConnectionProxy):
        return cast("CallerSession", session)
    own: Any = session
    return require_open(own.alias)


def _follow_commit(using: str, call: Callable[[], None]) -> None:
    # Robust: a failed wake must not prevent the later callbacks.
    transaction.on_commit(call, using=using, robust=True)
