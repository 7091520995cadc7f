"""Rows of Parquet, also with columns that Spark has no type for: nanoseconds, and UUIDs.

Of such a file Spark reads nothing unless it is told what to take its columns for. So their types
are looked up in the files themselves, here, and only then.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.fs as pf
import pyarrow.parquet as pq
from pyspark.sql import functions as f
from pyspark.sql import types as t

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.transforms.instants import of_nanos

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ILLEGAL: Final = "PARQUET_TYPE_ILLEGAL"
_UUID: Final = pa.binary(16)
_REMEDY: Final = (
    "write instants as timestamp[us, tz=UTC], and UUIDs as texts, or copy the files to where this "
    "host can read them"
)


def rows_of_parquet(spark: "SparkSession", paths: Sequence[str]) -> "DataFrame":
    """Return the rows of *paths*; nanoseconds are timestamps, rounded up, and UUIDs texts.

    Raises AnalysisException as Spark does, and ConfigurationError.
    """
    from pyspark.errors import AnalysisException

    try:
        # By itself Spark takes the columns of one file for all, and what others have besides is
        # neither read nor refused.
        rows = spark.read.option("mergeSchema", True).parquet(*paths)
        rows.schema.fieldNames()  # Spark Connect looks for it only when it is asked
    except AnalysisException as error:
        if _ILLEGAL not in str(error):
            raise
    else:
        return rows
    kinds = _kinds(spark, paths)
    schema = t.StructType([t.StructField(one.name, _read_as(one.type)) for one in kinds])
    rows = spark.read.schema(schema).parquet(*paths)
    return rows.select(*(_meant(rows[one.name], one.type).alias(one.name) for one in kinds))


def _kinds(spark: "SparkSession", paths: Sequence[str]) -> pa.Schema:
    """Return the columns of all files together."""
    listed = spark.read.format("binaryFile").load([*paths]).select("path").collect()
    try:
        return pa.unify_schemas([_columns_of(row["path"]) for row in listed])
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(
            f"{', '.join(paths)} has columns of nanoseconds or UUIDs, and which they are cannot be "
            f"looked up: {error}; {_REMEDY}"
        ) from error


def _columns_of(uri: str) -> pa.Schema:
    files, path = pf.FileSystem.from_uri(uri.replace("file:/", "file:///", 1))
    with files.open_input_file(path) as file:
        parquet = pq.ParquetFile(file)
        leaves = parquet.schema
        # A column that is nested has the path of its leaf for a name.
        uuids = {
            leaves.column(at).path
            for at in range(len(leaves))
            if leaves.column(at).logical_type.type == "UUID"
        }
        return pa.schema(
            [one.with_type(_UUID) if one.name in uuids else one for one in parquet.schema_arrow]
        )


def _read_as(kind: pa.DataType) -> t.DataType:
    from pyspark.sql.pandas.types import from_arrow_type

    if kind == _UUID:
        return t.BinaryType()
    if _is_nanos(kind):
        return t.LongType()
    plain: t.DataType = from_arrow_type(kind, prefer_timestamp_ntz=True)
    return plain


def _meant(column: "Column", kind: pa.DataType) -> "Column":
    if kind == _UUID:
        digits = f.lower(f.hex(column))
        ends = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
        parts = [f.substring(digits, begin, many) for begin, many in ends]
        return f.when(column.isNotNull(), f.concat_ws("-", *parts))
    if not _is_nanos(kind):
        return column
    # Without a zone it is refused as such.
    return of_nanos(column) if kind.tz else of_nanos(column).cast("timestamp_ntz")


def _is_nanos(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.unit == "ns"
