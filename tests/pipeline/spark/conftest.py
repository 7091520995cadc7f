"""One Spark for all tests in this folder; tests/scheduling.py keeps them in one worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.spark.lookups import remember_names
from timeoutmgr.pipeline import SessionOptions, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


QUICK = (
    # Only the fast compiler, and the collector with the fewest threads, which seldom has to run.
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms1g", "-Xmn500m"),
    # What it compiles fits in, and is not thrown away to be compiled again.
    "-XX:ReservedCodeCacheSize=240m",
    # Ten thousand classes of Spark's: room for them at once, and no look at their byte code.
    *("-XX:MetaspaceSize=256m", "-XX:+UnlockDiagnosticVMOptions"),
    "-XX:-BytecodeVerificationRemote",
)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session; to start another would take longer than most tests together."""
    options = SessionOptions(
        master="local[2,3]",
        partitions=2,
        configuration={
            "spark.driver.defaultJavaOptions": " ".join(QUICK),
            "spark.sql.adaptive.enabled": "false",
            # Many tests run the same job: what was compiled for one is there for all.
            "spark.sql.codegen.cache.maxEntries": "2000",
        },
    )
    with spark_session(options) as made:
        remember_names(made.sparkContext._jvm)
        yield made
