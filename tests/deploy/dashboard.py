"""The Grafana dashboard: ``python -m tests.deploy.dashboard`` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests import house

PATH: Final = house.ROOT / "deploy" / "grafana" / "timeoutmgr.json"
_OF: Final = '{endpoint=~"$endpoint"}'
_WIDTH: Final = 24
_HEIGHT: Final = 8

ROWS: Final[tuple[tuple[str, tuple[tuple[str, str, dict[str, str]], ...]], ...]] = (
    (
        "Does it go out?",
        (
            (
                "Age of the oldest due timeout",
                "s",
                {"{{endpoint}}": f"max by (endpoint) (timeoutmgr_oldest_due_age_seconds{_OF})"},
            ),
            (
                "Lateness",
                "s",
                {
                    f"{part} {{{{endpoint}}}}": f"histogram_quantile({share}, sum by (endpoint, le)"
                    f" (rate(timeoutmgr_lateness_seconds_bucket{_OF}[$__rate_interval])))"
                    for part, share in (("p50", 0.5), ("p99", 0.99))
                },
            ),
            (
                "Closed, by destination and outcome",
                "ops",
                {
                    "{{destination}} {{outcome}}": "sum by (destination, outcome) "
                    f"(rate(timeoutmgr_timeouts_closed_total{_OF}[$__rate_interval]))"
                },
            ),
        ),
    ),
    (
        "What comes in, what fails",
        (
            (
                "Stored, claimed, handled",
                "ops",
                {
                    event: f"sum(rate(timeoutmgr_{event}_total{_OF}[$__rate_interval]))"
                    for event in ("timeouts_stored", "timeouts_claimed", "handled")
                },
            ),
            (
                "Failures",
                "ops",
                {
                    event: f"sum(rate(timeoutmgr_{event}_total{_OF}[$__rate_interval]))"
                    for event in (
                        *("moved_to_error", "timeouts_failed", "dead_letters_placed"),
                        *("immediate_retries", "delayed_retries", "timeouts_retry"),
                        *("storage_failures", "transport_failures", "polls_failed"),
                    )
                },
            ),
            (
                "Given up: errors by reason, dead letters by class",
                "ops",
                {
                    "{{reason}}": "sum by (reason) "
                    f"(rate(timeoutmgr_error_queue_messages_total{_OF}[$__rate_interval]))",
                    "{{class}}": "sum by (class) "
                    f"(rate(timeoutmgr_dead_letters_total{_OF}[$__rate_interval]))",
                },
            ),
            (
                "Messages in queues",
                "short",
                {"{{queue}}": f"max by (queue) (timeoutmgr_queue_messages{_OF})"},
            ),
        ),
    ),
    (
        "How much, and how long?",
        (
            (
                "Pending",
                "short",
                {"{{endpoint}}": f"max by (endpoint) (timeoutmgr_pending{_OF})"},
            ),
            (
                "In flight, paused",
                "short",
                {
                    "in flight": f"max by (endpoint) (timeoutmgr_in_flight{_OF})",
                    "paused {{destination}}": f"max by (destination) (timeoutmgr_paused{_OF})",
                },
            ),
            (
                "Duration of 99 of 100",
                "s",
                {
                    operation: "histogram_quantile(0.99, sum by (le) "
                    f"(rate(timeoutmgr_{operation}_duration_seconds_bucket{_OF}"
                    "[$__rate_interval])))"
                    for operation in ("store", "claim", "confirm", "handler")
                },
            ),
        ),
    ),
    (
        "Is it sound?",
        (
            (
                "Processes",
                "short",
                {"{{endpoint}}": f"sum by (endpoint) (timeoutmgr_processes{_OF})"},
            ),
            (
                "Breakers: 0 disarmed, 1 armed, 2 triggered",
                "short",
                {"{{breaker}}": f"max by (breaker) (timeoutmgr_breaker_state{_OF})"},
            ),
            (
                "Partitions that are still to be made",
                "short",
                {"{{endpoint}}": f"max by (endpoint) (timeoutmgr_partitions_missing{_OF})"},
            ),
            (
                "Seconds since the last answer, and clock offset",
                "s",
                {
                    "store": f"time() - min(timeoutmgr_store_answered_timestamp_seconds{_OF})",
                    "broker": f"time() - min(timeoutmgr_broker_answered_timestamp_seconds{_OF})",
                    "poll": f"time() - max(timeoutmgr_last_poll_timestamp_seconds{_OF})",
                    "clock offset": f"max(abs(timeoutmgr_clock_offset_seconds{_OF}))",
                    "purge lag": f"max(timeoutmgr_purge_lag_seconds{_OF})",
                },
            ),
        ),
    ),
)
"""Title of each row; title, unit and expressions by legend of each panel."""


def expressions() -> Iterator[str]:
    """Yield every expression of the dashboard."""
    for _title, panels in ROWS:
        for _panel, _unit, series in panels:
            yield from series.values()


def document() -> dict[str, Any]:
    """Return the dashboard."""
    return {
        "title": "timeoutmgr",
        "uid": "timeoutmgr",
        "schemaVersion": 39,
        "version": 1,
        "tags": ["timeoutmgr"],
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source(), _endpoint()]},
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    top = number = 0
    for title, panels in ROWS:
        number += 1
        place = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        width = _WIDTH // len(panels)
        for at, (name, unit, series) in enumerate(panels):
            number += 1
            yield {
                "id": number,
                "type": "timeseries",
                "title": name,
                "datasource": {"type": "prometheus", "uid": "${source}"},
                "gridPos": {"x": at * width, "y": top + 1, "w": width, "h": _HEIGHT},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend}
                    for place, (legend, expression) in enumerate(series.items())
                ],
            }
        top += 1 + _HEIGHT


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _endpoint() -> dict[str, Any]:
    return {
        "name": "endpoint",
        "label": "Endpoint",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": "label_values(timeoutmgr_processes, endpoint)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def text() -> str:
    """Return the file."""
    return json.dumps(document(), indent=2) + "\n"


if __name__ == "__main__":
    Path(PATH).write_text(text())
