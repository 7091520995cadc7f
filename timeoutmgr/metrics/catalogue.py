"""The single catalogue of metrics: names, kinds, units, labels and help.

The exporter, the reference page, the alert rules and the dashboard are checked against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from timeoutmgr.telemetry import Operation

PREFIX: Final = "timeoutmgr_"
ENDPOINT: Final = "endpoint"
"""The label of every metric."""
DESTINATION: Final = "destination"
REASON: Final = "reason"
CLASS: Final = "class"
LATENESS_BOUNDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
"""Upper bounds of the buckets of lateness, in seconds."""
DURATION_BOUNDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Upper bounds of the buckets of a duration, in seconds."""


class Kind(StrEnum):
    """Kind of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Merge(StrEnum):
    """How the gauges of several processes are merged."""

    MAX = "max"
    MIN = "min"
    FARTHEST = "farthest"
    """The value farthest from 0, with its sign."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric; *name* is without prefix and without the suffix of a counter."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    merge: Merge = Merge.MAX

    @property
    def unit(self) -> str:
        """The unit at the end of the name, as OpenMetrics requires; empty for a number."""
        return "seconds" if self.name.endswith("_seconds") else ""

    @property
    def family(self) -> str:
        """The full name of the metric, with which its samples begin."""
        return PREFIX + self.name

    @property
    def exported(self) -> str:
        """The full name as used in expressions; for a histogram, the name of its buckets."""
        suffixes = {Kind.COUNTER: "_total", Kind.HISTOGRAM: "_bucket", Kind.INFO: "_info"}
        return self.family + suffixes.get(self.kind, "")


def _gauge(name: str, help: str, *labels: str, merge: Merge = Merge.MAX) -> Metric:
    return Metric(name, Kind.GAUGE, help, labels, merge)


_EVENTS: Final = {
    "acknowledged_unknown": "final acknowledgements for which no copy waited",
    "canaries_delivered": "canaries that were delivered",
    "canaries_late": "canaries that were not delivered in time",
    "cancelled_on_arrival": "messages that were cancelled before they were stored",
    "dead_letters_collected": "messages that RabbitMQ gave up and that are dead letters now",
    "dead_letters_over_quota": "messages without a dead letter, because its queue is full",
    "dead_letters_placed": "dead letters that were placed",
    "delayed_dispatched": "messages of the delayed message store that were sent",
    "delayed_failed": "messages of the delayed message store that went to the error queue",
    "delayed_fetched": "messages that were fetched from the delayed message store",
    "delayed_gone": "fetched messages whose row another process removed",
    "delayed_retries": "delayed retries of failed messages",
    "delayed_stored": "messages that the delayed message store stored",
    "duplicates": "repeats of stored messages, which were dropped",
    "expired_in_queue": "messages that expired in their queue",
    "expired_on_receipt": "messages that were received after their time to be received",
    "final_acknowledgements": "final acknowledgements that settled a copy",
    "handled": "messages that handlers handled",
    "handlers_stopped": "handlers that ended because the endpoint stopped",
    "housekeeping_failures": "failed removals of old rows",
    "id_conflicts": "messages under an id that was used with other content",
    "immediate_retries": "immediate retries of failed messages",
    "journal_over_quota": "copies that a full journal refused",
    "kept_messages_expired": "copies of transactional messages that became dead letters, because "
    "no final acknowledgement came in time",
    "leases_lost": "messages whose lease ended while a process had them",
    "lists_failed": "calls of list handlers that failed",
    "messages_given_back": "messages that went back to the queue for other threads",
    "moved_to_dead_letters": "failed messages that became dead letters",
    "moved_to_error": "messages that went to the error queue",
    "polls": "polls of the store",
    "polls_failed": "polls that failed",
    "polls_forced": "polls that the watchdog began",
    "pump_failures": "unexpected failures of a pump",
    "recovery_failures": "failures to treat a failed message",
    "recurring_failures": "failures to store the next run of a schedule",
    "recurring_runs_refused": "runs of schedules that were refused",
    "recurring_runs_skipped": "runs of schedules that were skipped",
    "recurring_runs_stored": "runs of schedules that were stored",
    "rows_purged": "old rows that were removed",
    "senders_ahead": "messages of senders whose clock is ahead",
    "storage_conflicts": "deadlocks and lock time-outs, which are tried again",
    "storage_failures": "failures of the storage",
    "superseded": "messages that were sent before their replacement and arrived after it",
    "sweep_failures": "failed sweeps of the dead-letter queues",
    "timeouts_claimed": "timeouts that the poller claimed",
    "timeouts_cleared": "timeouts that the clear of a saga cancelled",
    "timeouts_dispatched": "timeouts that were sent",
    "timeouts_failed": "timeouts that went to the error queue",
    "timeouts_gone": "claimed timeouts that were cancelled, moved, sent or parked by a pause",
    "timeouts_replaced": "pending timeouts that a later message replaced",
    "timeouts_retry": "timeouts that are tried again",
    "timeouts_stored": "timeouts that were stored",
    "transport_failures": "failures of the broker",
    "unroutable": "messages of delay levels whose queue was missing",
    "unroutable_delivered": "messages of delay levels that were delivered later",
    "wakes_received": "requests to poll that were received",
    "watchdog_failures": "failures of the watchdog",
}

BY_LABEL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "delayed_stored": DESTINATION,
        "timeouts_stored": DESTINATION,
        "closed_failed": DESTINATION,
        "error_queue_messages": REASON,
        "dead_letters": CLASS,
    }
)
"""The label of each event that a telemetry counts by the values of a label."""

EVENTS: Final[Mapping[str, Metric]] = MappingProxyType(
    {
        name: Metric(name, Kind.COUNTER, text, labels=(BY_LABEL[name],) if name in BY_LABEL else ())
        for name, text in _EVENTS.items()
    }
)
"""A counter for each event that a telemetry counts, under its name."""

VALUES: Final[Mapping[str, Metric]] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            _gauge(
                "clock_offset_seconds",
                "clock of the database minus clock of the host",
                merge=Merge.FARTHEST,
            ),
            _gauge("last_poll_timestamp_seconds", "time of the last poll that succeeded"),
            _gauge(
                "partitions_missing",
                "partitions of later due times that are still to be cut out of coarser partitions",
            ),
            _gauge(
                "purge_lag_seconds",
                "age of the oldest row that is to be removed, beyond its retention",
            ),
        )
    }
)
"""A gauge for each value that a telemetry is given, under its name."""

LATENESS: Final = Metric(
    "lateness_seconds",
    Kind.HISTOGRAM,
    "dispatch minus due time, an observation for each message",
    (DESTINATION,),
)
EARLY: Final = Metric(
    "timeouts_early",
    Kind.COUNTER,
    "messages that were dispatched before they were due",
    labels=(DESTINATION,),
)

CLOSED: Final = Metric(
    "timeouts_closed",
    Kind.COUNTER,
    "timeouts that left the store, by outcome: dispatched, failed",
    labels=(DESTINATION, "outcome"),
)
ATTEMPTS: Final = Metric(
    "handler_attempts",
    Kind.COUNTER,
    "attempts at received messages, by result: ok, retried, error_queue, dead_letter",
    labels=("result",),
)
RESULTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "ok": ("handled",),
        "retried": ("immediate_retries", "delayed_retries"),
        "error_queue": ("moved_to_error",),
        "dead_letter": ("moved_to_dead_letters",),
    }
)
"""The events that are the attempts of each result."""
ERROR_QUEUE_MESSAGES: Final = Metric(
    "error_queue_messages",
    Kind.COUNTER,
    "received or due messages that were given up, by the class of their error",
    labels=(REASON,),
)
UNDELIVERABLE: Final = Metric(
    "dead_letters", Kind.COUNTER, "dead letters that were placed, by their class", labels=(CLASS,)
)

_DURATIONS: Final = {
    Operation.STORE: "time in which the store stored a batch of received timeouts",
    Operation.CLAIM: "time in which the store answered a claim of due timeouts",
    Operation.CONFIRM: "time from the send of due messages to their confirms",
    Operation.HANDLER: "time in the handlers of a message, or of a list of messages",
    Operation.SETTLE: "time in which a batch of handled messages was acknowledged",
}
DURATIONS: Final[Mapping[Operation, Metric]] = MappingProxyType(
    {
        operation: Metric(f"{operation}_duration_seconds", Kind.HISTOGRAM, text)
        for operation, text in _DURATIONS.items()
    }
)
"""A histogram for each operation that a telemetry observes."""

OLDEST_DUE_AGE: Final = _gauge(
    "oldest_due_age_seconds",
    "age of the oldest due timeout that is not paused; it grows while the store is away",
)
NEXT_DUE: Final = _gauge(
    "next_due_timestamp_seconds", "due time of the first pending timeout", merge=Merge.MIN
)
STORE_ANSWERED: Final = _gauge(
    "store_answered_timestamp_seconds", "time when the store last answered", merge=Merge.MIN
)
BROKER_ANSWERED: Final = _gauge(
    "broker_answered_timestamp_seconds", "time when the queues last answered", merge=Merge.MIN
)
PENDING: Final = _gauge(
    "pending", "stored timeouts that were not sent; beyond 50000 an estimate or a lower bound"
)
PENDING_AS_OF: Final = _gauge(
    "pending_as_of_timestamp_seconds", "time when the pending timeouts were last counted"
)
IN_FLIGHT: Final = _gauge("in_flight", "claimed timeouts that are not closed")
PAUSED: Final = _gauge(
    "paused",
    "whether a pause of the destination is in force: 1, or 0 after it; * is a pause of all",
    DESTINATION,
)
POOL_CONNECTIONS: Final = _gauge(
    "pool_connections", "connections of a process to its databases, by state: used, idle", "state"
)
QUEUE_MESSAGES: Final = _gauge(
    "queue_messages", "messages that wait in a queue of the endpoint", "queue"
)
BREAKER_STATE: Final = _gauge(
    "breaker_state", "state of a circuit breaker: 0 disarmed, 1 armed, 2 triggered", "breaker"
)
PROCESSES: Final = _gauge("processes", "processes of the endpoint that run here")
BUILD: Final = Metric(
    "build",
    Kind.INFO,
    "version of the product, and the revision of its tables of timeouts",
    labels=("version", "revision", "python"),
)

SAMPLED: Final = (
    *(OLDEST_DUE_AGE, NEXT_DUE, STORE_ANSWERED, BROKER_ANSWERED),
    *(PENDING, PENDING_AS_OF, IN_FLIGHT, PAUSED, POOL_CONNECTIONS),
    *(QUEUE_MESSAGES, BREAKER_STATE, PROCESSES, BUILD),
)
"""Metrics from samples of the endpoint, not from events or values."""

CATALOGUE: Final = tuple(
    sorted(
        (
            *(*EVENTS.values(), *VALUES.values(), *DURATIONS.values(), *SAMPLED),
            *(LATENESS, EARLY, CLOSED, ATTEMPTS, ERROR_QUEUE_MESSAGES, UNDELIVERABLE),
        ),
        key=lambda metric: metric.name,
    )
)
"""Every metric, by name."""
