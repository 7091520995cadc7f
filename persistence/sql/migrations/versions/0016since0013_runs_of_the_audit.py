"""An index that finds the rows of the audit that tell of one run."""

from sqlalchemy import Column, Index, MetaData, Table

from timeoutmgr.database.indexes import create_index_patiently
from timeoutmgr.database.texts import KeyText
from timeoutmgr.database.upgrade import revision_attributes

revision = "0016since0013"
down_revision = "0015since0013"


def upgrade() -> None:
    """Create the index; without the changes of single timeouts if it can be partial."""
    attributes = revision_attributes()
    name, metadata = f"{attributes['prefix']}audit", MetaData(schema=attributes["schema"])
    run_id = Table(name, metadata, Column("run_id", KeyText(255))).c.run_id
    some = run_id.is_not(None)
    create_index_patiently(Index(f"{name}_run", run_id, postgresql_where=some, sqlite_where=some))
