"""Tables of the product at an earlier revision."""

from alembic import command
from alembic.config import Config

from timeoutmgr.database import Database
from timeoutmgr.database.upgrade import folder_of

from .pending import PREFIX

FIRST = "0001"


def install_up_to(revision: str, database: Database) -> None:
    """Create the tables of a store in *database* in the state after *revision*."""
    attributes = {"schema": None, "prefix": PREFIX, "version_table": f"{PREFIX}timeouts_version"}
    with database.begin() as connection:
        config = Config(attributes={**attributes, "connection": connection})
        folder = folder_of("timeoutmgr.persistence:sql/migrations")
        config.set_main_option("script_location", str(folder))
        config.set_main_option("path_separator", "os")
        command.upgrade(config, revision)
