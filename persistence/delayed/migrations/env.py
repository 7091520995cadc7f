"""Alembic's entry to the revisions of a delayed message store's table."""

from types import SimpleNamespace
from typing import Any, Final

from alembic import context

from timeoutmgr.database.upgrade import run_environment

_LONGEST: Final = 63
"""Bytes of a name in PostgreSQL."""


def configure(**options: Any) -> None:
    """Configure Alembic; the key of a version table with a long name gets no name.

    By Alembic's name, `<table>.version_pkc`, PostgreSQL and MySQL refuse a table of 52 to 55 bytes.
    A version table that exists keeps its key.
    """
    context.configure(**options)
    if len(f"{options['version_table']}_pkc".encode()) > _LONGEST:
        context.get_context()._version.primary_key.name = None


run_environment(
    SimpleNamespace(
        config=context.config,
        is_offline_mode=context.is_offline_mode,
        configure=configure,
        begin_transaction=context.begin_transaction,
        run_migrations=context.run_migrations,
    )
)
