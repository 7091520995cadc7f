"""How late messages were dispatched, from their history, per endpoint, destination and day."""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from timeoutmgr.instants import duration_micros
from timeoutmgr.pipeline.quantiles import QUANTILES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUPS: Final = ("endpoint", "destination", "day")


def lateness(history: "DataFrame", by: tuple[str, ...], slo: timedelta) -> "DataFrame":
    """Return quantiles of the lateness in *history* for each group *by*, in microseconds.

    Exact, interpolated between neighbours as usual. *late* counts what took longer than *slo*;
    what was dispatched early would have a negative *least*.
    """
    sent = history.where(f.col("event") == "dispatched").select(
        "endpoint",
        "destination",
        f.to_date("due").alias("day"),
        (f.unix_micros("at") - f.unix_micros("due")).alias("lateness"),
    )
    wanted = list(QUANTILES.values())
    found = sent.groupBy(*by).agg(
        f.count(f.lit(1)).alias("messages"),
        f.percentile("lateness", wanted).alias("quantiles"),
        f.min("lateness").alias("least"),
        f.max("lateness").alias("most"),
        f.count_if(f.col("lateness") > duration_micros(slo)).alias("late"),
    )
    quantiles = (f.col("quantiles")[at].alias(name) for at, name in enumerate(QUANTILES))
    return found.select(*by, "messages", *quantiles, "least", "most", "late")


def histogram(history: "DataFrame") -> "DataFrame":
    """Return how many messages were late by less than each power of two microseconds."""
    late = f.unix_micros("at") - f.unix_micros("due")
    power = f.ceil(f.log2(f.greatest(late, f.lit(1)).cast("double")))
    sent = history.where(f.col("event") == "dispatched")
    return sent.groupBy(power.cast("int").alias("power")).agg(f.count(f.lit(1)).alias("messages"))
