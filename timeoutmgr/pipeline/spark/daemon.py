"""The process that Spark forks its Python workers from, with their modules in memory already.

By itself every worker would import them again, half a second each, and after each task walk all of
them for garbage. Spark starts this as ``python -m timeoutmgr.pipeline.spark.daemon MODULE``.
"""

import gc
import importlib
from importlib.util import find_spec
from typing import Final

from pyspark import daemon

from timeoutmgr.pipeline import adbc as connecting
from timeoutmgr.pipeline import stores

_WANTED: Final = (
    *("timeoutmgr.pipeline.source", "pyspark.worker", "pyspark.sql.worker.plan_data_source_read"),
    *("pyspark.sql.worker.write_into_data_source", "pyspark.sql.pandas.serializers"),
    *(
        "timeoutmgr.settings.file",
        "timeoutmgr.persistence",
        "timeoutmgr.pipeline.lake.reader",
    ),
)
_WHERE_INSTALLED: Final = ("psycopg", "adbc_driver_postgresql.dbapi")


def main() -> None:
    """Import, and go on as pyspark's own daemon does."""
    drivers = [name for name in _WHERE_INSTALLED if find_spec(name.partition(".")[0]) is not None]
    for name in (*_WANTED, *drivers):
        importlib.import_module(name)
    stores.keep_stores()
    connecting.keep_connections()
    # No worker looks through it for garbage, or copies its pages by doing so.
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
