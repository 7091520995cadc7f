# Databricks notebook source
"""A daily report on all stores, in cells of a notebook; also a plain script."""

# COMMAND ----------
from datetime import timedelta

from timeoutmgr.clock import SystemClock
from timeoutmgr.pipeline import read_timeouts, spark_session
from timeoutmgr.pipeline.jobs.report import report
from timeoutmgr.pipeline.jobs.report_page import report_page
from timeoutmgr.pipeline.options import ReportOptions

STORES = ("eu", "us")  # TIMEOUTMGR_STORE_EU and TIMEOUTMGR_STORE_US hold their URLs
ARCHIVE = "delta:s3://lake/history"

# COMMAND ----------
# If a session already runs, as in a notebook, it is used and not stopped.
with spark_session() as spark:
    pending = read_timeouts(spark, STORES[0], columns=["destination", "due"])
    pending.groupBy("destination").count().show()

    options = ReportOptions(stores=STORES, archive=ARCHIVE, promise=timedelta(seconds=1))
    found = report(spark, options, clock=SystemClock())

# COMMAND ----------
with open("report.html", "w", encoding="utf-8") as page:
    page.write(report_page(found))
