"""One Spark for all tests in this folder; tests/scheduling.py keeps them in one worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from timeoutmgr.pipeline import SessionOptions, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session; to start another would take longer than most tests together."""
    options = SessionOptions(
        master="local[2,3]",
        partitions=2,
        configuration={
            # Only the fast compiler, and the collector with the fewest threads.
            "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.adaptive.enabled": "false",
        },
    )
    with spark_session(options) as made:
        yield made
