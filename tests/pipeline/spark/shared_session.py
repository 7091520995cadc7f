"""One JVM for the workers of a test run: the first worker starts it, the other workers attach.

The worker that started the JVM stays until the last worker has left: a JVM ends with the process
that started it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from timeoutmgr.pipeline import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def shared_session(
    folder: Path, start: Callable[[], AbstractContextManager[SparkSession]]
) -> Iterator[SparkSession]:
    """Lend a session of the Spark that is noted in *folder*, or a new session by *start*."""
    address = folder / "spark.json"
    # A worker locks this file to join or leave; all attached workers share a lock on *users*.
    with _held(folder / "spark.lock", fcntl.LOCK_EX) as door:
        if address.exists():
            with _held(folder / "spark.users", fcntl.LOCK_SH):
                found = json.loads(address.read_text())
                fcntl.flock(door, fcntl.LOCK_UN)
                with _attached(found) as lent:
                    yield lent
                return
        with start() as made:
            address.write_text(json.dumps(_address_of(made)))
            fcntl.flock(door, fcntl.LOCK_UN)
            try:
                yield made
            finally:
                fcntl.flock(door, fcntl.LOCK_EX)
                address.unlink()
                with _held(folder / "spark.users", fcntl.LOCK_EX):
                    pass


@contextmanager
def _held(path: Path, how: int) -> Iterator[int]:
    handle = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(handle, how)
        yield handle
    finally:
        os.close(handle)


def _address_of(spark: SparkSession) -> dict[str, str]:
    # In the variables by which pyspark finds a JVM that is there.
    gateway: Any = spark.sparkContext._gateway
    return {
        "PYSPARK_GATEWAY_PORT": str(gateway.gateway_parameters.port),
        "PYSPARK_GATEWAY_SECRET": gateway.gateway_parameters.auth_token,
        # Not the first python3 on the PATH.
        "PYSPARK_PYTHON": sys.executable,
    }


@contextmanager
def _attached(address: dict[str, str]) -> Iterator[SparkSession]:
    from pyspark import SparkConf, SparkContext, java_gateway
    from pyspark.sql import SparkSession

    launch: Any = java_gateway.launch_gateway
    with pytest.MonkeyPatch.context() as patch:
        for name, value in address.items():
            patch.setenv(name, value)
        gateway = launch()
        running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
        context: Any = SparkContext(
            gateway=gateway,
            jsc=gateway.jvm.org.apache.spark.api.java.JavaSparkContext(running),
            conf=SparkConf(_jconf=running.conf()),
        )
    # With settings of its own: a worker does not see the settings of another.
    first = gateway.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    made = SparkSession(context, first.newSession())
    register(made)
    try:
        yield made
    finally:
        # Otherwise the end of the JVM would be an error of the accumulator server.
        context._accumulatorServer.shutdown()
