"""A view in a frame whose tasks read one part of it each, with no scan and no planner of Spark's.

A scan of a data source in Python is planned by a process of its own, half a second each time, and
every row that it yields is copied once more than need be.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timeoutmgr.pipeline.fetching import fetch
from timeoutmgr.pipeline.source import NamedStore
from timeoutmgr.pipeline.statements import Part
from timeoutmgr.pipeline.views import Selection, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsReader:
    """The function of the tasks: numbers of *parts* go in, their rows come out."""

    store: NamedStore
    view: str
    columns: pa.Schema
    which: Selection
    parts: tuple[Part, ...]
    snapshot: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each part whose number is in *batches*."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from fetch(
                    self.store.open(),
                    self.view,
                    self.columns,
                    self.which,
                    part=self.parts[number],
                    snapshot=self.snapshot,
                )


def frame_of(spark: "SparkSession", reader: PartsReader) -> "DataFrame | None":
    """Return what *reader* reads, by a task for each part; None where pyspark lacks the means.

    It is what ``mapInArrow`` does, which asks for pandas and uses nothing of it. So it takes what
    pyspark has for itself, and may name otherwise in its next version.
    """
    from py4j.protocol import Py4JError

    try:
        return _mapped(spark, reader)
    except (AttributeError, ImportError, Py4JError) as error:
        logger.info("this pyspark reads by the data source, which is slower: %s", error)
        return None


def _mapped(spark: "SparkSession", reader: PartsReader) -> "DataFrame":
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.types import StructType
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    kind: Any = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    read = UserDefinedFunction(reader, StructType.fromDDL(ddl(reader.columns)), evalType=kind)
    numbers = _numbers(spark, len(reader.parts))
    rows = numbers._jdf.mapInArrow(read("id")._jc, False, None)
    return DataFrame(rows, spark)


def _numbers(spark: "SparkSession", count: int) -> Any:
    """Return the numbers below *count*, a task each, as rows of which Spark knows no size.

    Of ``range`` it knows that it is small, would take what is read of it for small too, and send
    a million rows to every process to join them.
    """
    from pyspark.sql.classic.dataframe import DataFrame

    # A table whose ranges are all detached has no part.
    known: Any = spark.range(0, count, 1, max(count, 1))
    rows, schema = known._jdf.queryExecution().toRdd(), known._jdf.schema()
    session: Any = spark
    return DataFrame(session._jsparkSession.internalCreateDataFrame(rows, schema, False), spark)
