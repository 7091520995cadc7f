"""Room for all the ids that a clear of a saga keeps: a TEXT of MySQL ends at 65,535 bytes."""

from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMTEXT

from timeoutmgr.database.indexes import one_table_at_a_time
from timeoutmgr.database.upgrade import revision_attributes

revision = "0015since0013"
down_revision = "0014since0013"


def upgrade() -> None:
    """Widen the column; the texts of other databases have no such end."""
    if op.get_context().dialect.name in {"mysql", "mariadb"}:
        attributes = revision_attributes()
        table, schema = f"{attributes['prefix']}cleared_sagas", attributes["schema"]
        with one_table_at_a_time():
            op.alter_column(table, "kept", type_=MEDIUMTEXT(), schema=schema)
