"""The alert rules in scaled time: a drill need not wait for minutes."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from tests import house

SCALE: Final = 60
"""Seconds of a rule that pass in one second of a drill."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600}
_RULES: Final = house.ROOT / "deploy" / "prometheus" / "alerts.yml"


def rules() -> dict[str, Any]:
    """Return the rules, with each duration and each threshold in seconds scaled."""
    found: dict[str, Any] = yaml.safe_load(_RULES.read_text())
    for group in found["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _scaled(rule["expr"])
            if "for" in rule:
                rule["for"] = _duration(rule["for"])
    return found


def _scaled(expression: str) -> str:
    ranges = re.sub(r"\b\d+[smh]\b", lambda found: _duration(found[0]), expression)
    # A threshold above 0 is of seconds; 0 is of counts.
    return re.sub(r"> ([1-9]\d*)", lambda found: f"> {int(found[1]) / SCALE:g}", ranges)


def _duration(text: str) -> str:
    return f"{int(text[:-1]) * _UNITS[text[-1]] * 1_000 // SCALE}ms"
