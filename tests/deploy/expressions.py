"""The metrics and labels that an expression of Prometheus names."""

from __future__ import annotations

import re
from typing import Final

from timeoutmgr.metrics.catalogue import CATALOGUE, ENDPOINT, PREFIX, Kind, Metric

_FIXED: Final = frozenset({"le", "instance", "job"})
"""Labels that Prometheus gives."""


def samples() -> dict[str, Metric]:
    """Return each name that a sample can have."""
    found = {metric.exported: metric for metric in CATALOGUE}
    for metric in CATALOGUE:
        if metric.kind is Kind.HISTOGRAM:
            found |= {f"{metric.family}_{end}": metric for end in ("count", "sum")}
    return found


def mistakes(expression: str) -> list[str]:
    """Return the names in *expression* that the catalogue does not have."""
    known = samples()
    used = re.findall(rf"\b{PREFIX}\w+", expression)
    if not used:
        return [f"no metric: {expression}"]
    unknown = [name for name in used if name not in known]
    labels = {ENDPOINT, *_FIXED, *(each for n in used if n in known for each in known[n].labels)}
    grouped = ",".join(re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", expression)).split(",")
    selected = re.findall(r"[{,]\s*(\w+)\s*(?:=~|!=|!~|=)", expression)
    named = {each.strip() for each in (*grouped, *selected)} - {""}
    return [*unknown, *(f"label {each}" for each in sorted(named - labels))]
