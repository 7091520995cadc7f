"""Places of history tables: the format of a place, and whether it has a table."""

import pyarrow as pa

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.errors import PipelineUnavailable
from timeoutmgr.pipeline.lake.table import WRITTEN, HistoryTable
from timeoutmgr.pipeline.options import DELTA, ICEBERG, history_place


def open_table(
    place: str, version: int | None = None, written: pa.Schema = WRITTEN
) -> HistoryTable:
    """Return the table at *place*, see ``options.history_place``, at *version* or the newest.

    Its rows have the columns *written*.

    Raises PipelineUnavailable if the library of the format is missing.
    """
    place = history_place("the history table", place)
    try:
        if place.startswith(DELTA):
            from timeoutmgr.pipeline.lake.delta import DeltaHistory

            return DeltaHistory(place, version, written)
        if place.startswith(ICEBERG):
            from timeoutmgr.pipeline.lake.iceberg import IcebergHistory

            return IcebergHistory(place, version, written)
    except ModuleNotFoundError as error:
        raise PipelineUnavailable(
            f"the history table {place} needs {error.name}; install it with: "
            "pip install 'timeoutmgr[lake]'"
        ) from error
    from timeoutmgr.pipeline.lake.parquet import ParquetHistory

    return ParquetHistory(place, version, written=written)


def present_table(
    place: str, version: int | None = None, written: pa.Schema = WRITTEN
) -> HistoryTable:
    """Return the table at *place* for reading; raise ConfigurationError if it is missing.

    Also raise if the table lacks *version*: events would be missing from another version.
    """
    table = open_table(place, version, written)
    if table.version is None or version not in (None, table.version):
        wanted = "" if version is None else f" with a version {version}"
        raise ConfigurationError(
            f"there is no history table{wanted} at {place}; mount its disk, or give the place that "
            "`timeoutmgr pipeline archive --to` or `stream --to` writes"
        )
    return table
