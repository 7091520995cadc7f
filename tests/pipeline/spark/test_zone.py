"""A session of the caller's own, in another zone than UTC."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from timeoutmgr.clock import SystemClock
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline import register
from timeoutmgr.pipeline.jobs.lateness import lateness
from timeoutmgr.pipeline.jobs.migrate import Ends, MigrateOptions, migrate
from timeoutmgr.pipeline.jobs.reconcile import reconcile
from timeoutmgr.pipeline.jobs.schedule import schedule
from timeoutmgr.pipeline.options import (
    LatenessOptions,
    ReconcileOptions,
    ScheduleOptions,
)
from timeoutmgr.pipeline.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOCK = SystemClock()

JOBS: dict[str, Callable[[SparkSession, str], object]] = {
    "register": lambda spark, _store: register(spark),
    "schedule": lambda spark, store: schedule(
        spark,
        ScheduleOptions(store=store, endpoint="sales", dataset="spring", paths=("a.parquet",)),
        clock=CLOCK,
    ),
    "reconcile": lambda spark, store: reconcile(
        spark, ReconcileOptions(stores=(store,)), clock=CLOCK
    ),
    "lateness": lambda spark, store: lateness(spark, LatenessOptions(stores=(store,)), clock=CLOCK),
    "migrate": lambda spark, _store: migrate(spark, MigrateOptions(ends=Ends(settings=""))),
}


@pytest.fixture
def new_york(spark: SparkSession) -> SparkSession:
    """A session with settings of its own, as a notebook in New York has them."""
    made = spark.newSession()
    made.conf.set("spark.sql.session.timeZone", "America/New_York")
    return made


@pytest.mark.parametrize("job", JOBS)
def test_a_session_in_another_zone_is_refused_by_every_job(
    new_york: SparkSession, sqlite: Store, job: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"is America/New_York, expected UTC.*conf\.set"):
        JOBS[job](new_york, sqlite.name)
