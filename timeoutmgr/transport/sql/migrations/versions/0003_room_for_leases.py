"""Room on PostgreSQL's pages of messages, so that a lease stays on the page of its message.

A lease writes its row anew. On another page the row needs an entry in each index, and the log gets
all of it: 1,730 bytes for a message of 512, beside 240.
"""

from alembic import op
from sqlalchemy import MetaData, Table

from timeoutmgr.database.upgrade import revision_attributes

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Leave room for a second version of each row; neither readers nor writers wait for it."""
    dialect, attributes = op.get_context().dialect, revision_attributes()
    if dialect.name != "postgresql":
        return
    schema = MetaData(schema=attributes["schema"])
    messages = Table(f"{attributes['prefix']}queue_messages", schema)
    table = dialect.identifier_preparer.format_table(messages)
    op.execute(f"ALTER TABLE {table} SET (fillfactor = 45)")
