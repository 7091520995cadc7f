"""Alembic's entry to the revisions of the dead-letter store."""

from alembic import context

from timeoutmgr.database.upgrade import run_environment

run_environment(context)
