"""Alembic's entry to the revisions of a delayed message store's table."""

from alembic import context

from timeoutmgr.database.upgrade import run_environment

run_environment(context)
