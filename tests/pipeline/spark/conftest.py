"""One Spark for all tests in this folder; tests/scheduling.py keeps them in two workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.pipeline.spark import worker_parent
from tests.pipeline.spark.lookups import remember_names
from tests.pipeline.spark.shared_session import shared_session
from timeoutmgr.pipeline import SessionOptions, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


QUICK_START: Final = (
    # Only the fast compiler, and the collector with the fewest threads.
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    # Spark loads ten thousand classes: skip the byte code check.
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
)
QUICK: Final = (
    *QUICK_START,
    # The collector seldom has to run, and the classes have their room at once.
    *("-Xms1g", "-Xmn500m", "-XX:MetaspaceSize=256m"),
    # The compiled code fits in, and is not thrown away to be compiled again.
    "-XX:ReservedCodeCacheSize=240m",
)
# A program for each plan takes longer to write than the plan takes for its few rows.
INTERPRETED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark(run_folder: Path) -> Iterator[SparkSession]:
    """The one Spark; to start another would take longer than most tests together."""
    options = SessionOptions(
        master="local[2,3]",
        partitions=2,
        configuration={
            "spark.driver.defaultJavaOptions": " ".join(QUICK),
            "spark.sql.adaptive.enabled": "false",
            "spark.python.daemon.module": worker_parent.__name__,
            **INTERPRETED,
        },
    )
    with shared_session(run_folder, lambda: spark_session(options)) as lent:
        remember_names(lent.sparkContext._jvm)
        yield lent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests here more time: one that is ended amid a call leaves Spark unusable."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Have Spark write a program for each plan, as it does by default."""
    for name in INTERPRETED:
        spark.conf.unset(name)
    yield
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
