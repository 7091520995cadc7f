"""The quantiles of lateness, by the names that reports give them."""

from typing import Final

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
