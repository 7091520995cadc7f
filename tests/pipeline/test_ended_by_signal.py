"""A command that a signal ends amid a call into Java; in a process and a Spark of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.pipeline.spark.conftest import QUICK_START
from timeoutmgr.pipeline.stores import Store

WAITING = """
import os
import signal
import sys
import threading

from py4j.clientserver import ClientServerConnection
from pyspark.sql import functions as f

from timeoutmgr.cli.main import cli
from timeoutmgr.pipeline.jobs import reconcile
from timeoutmgr.pipeline.spark.session import in_utc

shut = ClientServerConnection.shutdown_socket


def broken(connection, *ports):
    # As py4j shuts the connection of a call where Java has closed it before.
    def close():
        del connection.close
        connection.close()
        raise BrokenPipeError

    connection.close = close
    shut(connection, *ports)
    vars(connection).pop("close", None)


driver, number = os.getpid(), int(sys.argv[1])


def signalled(_row):
    os.kill(driver, number)
    threading.Event().wait()  # a worker that Spark has to end


@in_utc
def waiting(spark, *_args, **_more):
    ClientServerConnection.shutdown_socket = broken
    spark.range(1).select(f.udf(signalled, "INT", useArrow=False)("id")).collect()


reconcile.reconcile = waiting
given = ["--master", "local[1]", "--store", sys.argv[2], "--conf", sys.argv[3]]
cli.main(["pipeline", "reconcile", *given])
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGTERM, 143, id="SIGTERM"),
        pytest.param(signal.SIGINT, 130, id="SIGINT", marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_a_job_that_waits_for_java_with_its_own_code_and_no_traceback(
    sqlite: Store, number: signal.Signals, code: int
) -> None:
    quick = f"spark.driver.defaultJavaOptions={' '.join(QUICK_START)}"
    words = [sys.executable, "-c", WAITING, str(int(number)), sqlite.name, quick]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    ended = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr.strip()) == (code, "… starting Spark")
