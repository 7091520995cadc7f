"""Files of a data set: their rows, their identity, and the name of a broken file."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pf
import pyarrow.parquet as pq
from pyspark.sql import functions as f
from pyspark.sql import types as t

from timeoutmgr.errors import ConfigurationError, TimeoutManagerError
from timeoutmgr.pipeline.options import TABLE
from timeoutmgr.pipeline.spark.conditions import Condition, conditions_of
from timeoutmgr.pipeline.transforms.instants import of_nanos
from timeoutmgr.pipeline.transforms.requests import BY_THEIR_NAMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Half of a surrogate pair alone, as a JSON escape. An even number of backslashes before it escapes
# only the backslashes.
_LONE: Final = (
    r"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F])"
)
_SHOWN: Final = 120


def require_texts(spark: "SparkSession", paths: Sequence[str], *, is_json: bool) -> None:
    """Raise ConfigurationError if a line of *paths* holds bytes, or escapes, that are not text.

    In a row, Spark would silently replace such a character in the message by a question mark.
    """
    lines = spark.read.text([*paths])
    is_bad = ~f.is_valid_utf8("value")
    if is_json:
        is_bad = is_bad | f.col("value").rlike(_LONE)
    found = (
        lines.where(is_bad)
        .select(f.col("_metadata.file_path"), f.make_valid_utf8("value").alias("line"))
        .first()
    )
    if found is not None:
        raise ConfigurationError(
            f"{found[0]} has a line that is not UTF-8, or has half of a surrogate pair: "
            f"{found[1][:_SHOWN]!r}; no message could hold it unchanged. Fix the line, or write "
            "the file as UTF-8"
        )


_ILLEGAL: Final = "PARQUET_TYPE_ILLEGAL"
_UUID: Final = pa.binary(16)
_REMEDY: Final = (
    "write instants as timestamp[us, tz=UTC], and UUIDs as texts, or copy the files to where this "
    "host can read them"
)


def rows_of_parquet(spark: "SparkSession", paths: Sequence[str]) -> "DataFrame":
    """Return the rows of *paths*; nanoseconds are timestamps, rounded up, and UUIDs texts.

    Spark has no type for columns of nanoseconds and UUIDs, and cannot read a file that has them
    unless it is told other types. Only for such files, look up the types in the files.

    Raises ConfigurationError, and Spark's AnalysisException.
    """
    from pyspark.errors import AnalysisException

    try:
        # By default Spark takes the columns of one file for all files, and silently ignores
        # further columns of other files.
        rows = spark.read.option("mergeSchema", True).parquet(*paths)
        rows.schema.fieldNames()  # Spark Connect reads the schema only when asked
    except AnalysisException as error:
        if error.getCondition() != _ILLEGAL:
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
    # Spark names a file without the escapes of a URI.
    escaped = quote(uri.replace("file:/", "file:///", 1), safe=":/@")
    files, path = pf.FileSystem.from_uri(escaped)
    with files.open_input_file(path) as file:
        parquet = pq.ParquetFile(file)
        leaves = parquet.schema
        # The name of a nested column is the path of its leaf.
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
    # Without a zone the column stays so, and is refused later.
    return of_nanos(column) if kind.tz else of_nanos(column).cast("timestamp_ntz")


def _is_nanos(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.unit == "ns"


_NO_OBJECT: Final = "_no_object"
_AS_WRITTEN: Final[Mapping[str, tuple[type[t.DataType], ...]]] = {
    "headers": (t.StructType,),
    "body": (t.StructType, t.ArrayType),
}
"""Columns of JSON whose nested values are kept as the text in the file."""
PACKED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")
"""Endings of files that Spark unpacks itself."""


def rows_of(
    spark: "SparkSession",
    paths: Sequence[str],
    kind: str,
    *,
    multi_line: bool = False,
    columns: Mapping[str, str] = BY_THEIR_NAMES,
) -> "DataFrame":
    """Return the rows of *paths*, files or folders of the format *kind*.

    With *multi_line* a CSV value may contain line ends, and a JSON file is one array or object; one
    task reads such a file. A body that is a JSON object or array keeps its exact text from the
    file; *columns* has the names of the columns of body and headers in the files.
    """
    reader = spark.read.format(kind)
    if kind == "csv":
        # A bad line fails the job instead of becoming a reject: the first half of a value that is
        # cut off at a line end looks like a good row. Without this check, Spark would also mix up
        # the columns of a file that has them in another order than the first file.
        reader = reader.option("header", True).option("mode", "FAILFAST").option("escape", '"')
        reader = reader.option("enforceSchema", False)
        # If Spark reads only some columns, it does not count the values of a line: a comma in a
        # body would shift the next values.
        reader = reader.option("columnPruning", False)
    if kind in ("csv", "json"):
        reader = reader.option("multiLine", multi_line)
    if kind == "json":
        reader = reader.option("columnNameOfCorruptRecord", _NO_OBJECT)
    with analysed(", ".join(paths), kind):
        if kind == "parquet":
            return rows_of_parquet(spark, paths)
        require_texts(spark, paths, is_json=kind == "json")
        rows = reader.load([*paths])
        if kind != "json":
            return rows
        if _NO_OBJECT in rows.columns:
            raise ConfigurationError(
                f"{', '.join(paths)} has lines that are not JSON objects; expected one object in "
                "each line, without commas between them. Fix the lines, or read a file that is "
                "one array with multi_line (--multi-line)"
            )
        if multi_line:
            _require_unpacked(rows.inputFiles())
        return reader.schema(_as_written(rows.schema, columns)).load([*paths])


def table_of(spark: "SparkSession", given: str) -> "DataFrame":
    """Return the rows of the table in Spark's catalog that *given*, ``table:NAME``, names."""
    remedy = "; give its name as Spark SQL has it, and what its catalog needs by --conf"
    with analysed(given, "a table", remedy):
        rows = spark.table(given.removeprefix(TABLE))
        rows.schema.fieldNames()  # Spark Connect reads the schema only when asked
    return rows


@contextmanager
def analysed(what: str, kind: str, remedy: str = "") -> Iterator[None]:
    """Raise ConfigurationError if Spark cannot plan to read *what* as *kind*."""
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        raise ConfigurationError(
            f"{what} cannot be read as {kind}: {str(error).splitlines()[0]}{remedy}"
        ) from error


def _as_written(schema: t.StructType, columns: Mapping[str, str]) -> t.StructType:
    # Spark would infer a single type for all objects: a number can become a text, 1 becomes 1.0,
    # and null members vanish. In a column of texts Spark keeps nested values as in the file.
    nested = {columns.get(name, name).lower(): kinds for name, kinds in _AS_WRITTEN.items()}
    fields = [
        t.StructField(one.name, t.StringType())
        if isinstance(one.dataType, nested.get(one.name.lower(), ()))
        else one
        for one in schema.fields
    ]
    body = columns.get("body", "body")
    if body.lower() not in {one.name.lower() for one in fields}:
        # Spark infers no column if all objects are empty.
        fields.append(t.StructField(body, t.StringType()))
    return t.StructType(fields)


def _require_unpacked(files: Sequence[str]) -> None:
    packed = next((name for name in files if name.endswith(PACKED)), None)
    if packed is not None:
        # Spark cannot go back in a compressed file, and would write nested values anew: 1e2 as
        # 100.0, and only the first seventeen of many digits.
        raise ConfigurationError(
            f"{packed} is compressed, and of such a file with multi_line (--multi-line) nested "
            "bodies would not stay as they are written; unpack it, or write an object a line"
        )


def which_files(spark: "SparkSession", paths: Sequence[str]) -> dict[str, Any]:
    """Return the identity of the files *paths*, for JSON: a digest of names, lengths and times.

    The files are only listed, not read.
    """
    files = spark.read.format("binaryFile").load([*paths])
    rows = files.select("path", "length", f.unix_micros("modificationTime")).collect()
    found = sorted(tuple(row) for row in rows)
    return {
        "count": len(found),
        "first": found[0][0] if found else None,
        "sha256": hashlib.sha256(json.dumps(found).encode()).hexdigest(),
    }


@contextmanager
def broken_files_named(kind: str) -> Iterator[None]:
    """Raise ConfigurationError if Spark cannot read a file of the format *kind*."""
    try:
        yield
    except TimeoutManagerError:
        raise
    except Exception as error:  # pyspark has separate error trees for local and Connect
        sentence = _sentence(conditions_of(error), kind)
        if sentence is None:
            raise
        raise ConfigurationError(sentence) from error


def _sentence(conditions: Sequence[Condition], kind: str) -> str | None:
    # A condition's name is a class of conditions, sometimes followed by a subclass.
    known = {one.name.partition(".")[0]: one.parameters for one in conditions}
    unlike = known.get("CANNOT_MERGE_SCHEMAS")
    if unlike is not None:
        return (
            f"the files of {kind} cannot be read together: "
            f"{_differing(unlike['left'], unlike['right'])}; "
            "write them with one type for each column, or read them one by one"
        )
    unread, bad_line = known.get("FAILED_READ_FILE"), known.get("MALFORMED_RECORD_IN_PARSING")
    if unread is None:
        return None
    if bad_line is not None:
        return (
            f"{unread['path']} has a line without the columns of the header: "
            f"{bad_line['badRecord'][:_SHOWN]}; fix the line, or, if values in quotes hold "
            "line ends, read it with multi_line (--multi-line)"
        )
    why = conditions[-1].text.strip().partition("\n")[0]  # Spark Connect adds frames of Java
    return (
        f"{unread['path']} cannot be read as {kind}: {why[:_SHOWN]}; it is broken, "
        "of another format, or has other columns than the first file. Write it anew, or leave it "
        "out of the paths"
    )


def _differing(one: str, other: str) -> str:
    """Return the columns whose types differ between two schemas in Spark's SQL notation."""
    kinds, others = _kinds_in(one), _kinds_in(other)
    return ", ".join(
        f"column {name!r} is {kind} in one and {others[name]} in another"
        for name, kind in kinds.items()
        if others.get(name, kind) != kind
    )


def _kinds_in(schema: str) -> dict[str, str]:
    found = t.DataType.fromDDL(schema.strip('"'))
    assert isinstance(found, t.StructType), "files have columns"
    return {one.name: one.dataType.simpleString() for one in found.fields}
