"""Pages that are made from the source: ``python -m tests.docs.generated`` writes them."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from sqlalchemy import Column, Table

from tests import house
from tests.docs.pages import DOCS
from timeoutmgr import errors
from timeoutmgr.cli.exits import Exit, exit_of
from timeoutmgr.deadletter.tables import dead_letter_tables
from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.metrics.catalogue import CATALOGUE, PROCESSES, Kind, Merge, Metric
from timeoutmgr.persistence.sql.tables import tables as timeout_tables
from timeoutmgr.satellites.timeout_manager.timeouts import _REPORTS
from timeoutmgr.transport.sql.tables import tables as queue_tables

HEAD: Final = """\
# Errors

`tests/docs/test_generated.py` makes this page from the classes, and fails when it is stale.

Every error that the product raises on purpose derives from `TimeoutManagerError`. Its text states
the value, the expectation and the remedy. Catch as widely or as narrowly as you need: `except
timeoutmgr.errors.InvalidMessage`. Below an error, the command line names the section of this page;
`--json` has it as `help`.

* **The message is wrong** (`InvalidMessage`): nothing was sent; fix the message.
* **The configuration is wrong** (`ConfigurationError`): nothing was started; fix the settings.
* **A server is away** (`StorageUnavailable`, `TransportUnavailable`): try again; no accepted
  message is lost.
* **The answer is unknown** (`DeliveryUnknown`): send again with the same `message_id`.
"""

TABLES_HEAD: Final = """\
# Tables

`tests/docs/test_generated.py` makes this page from the tables, and fails when it is stale.

Names begin with `timeoutmgr_`, or with the setting `prefix`, in the schema of the setting
`schema`. Instants are microseconds since 1970 in UTC. `timeoutmgr install` creates and upgrades the
tables; `timeoutmgr install --sql` prints the statements. Reports may read the tables. Write only
through the product, because locks guard each change. Each group of tables has its version in a
separate table (such as `timeouts_version`). The table of a [delayed message
store](delayed-message-store.md) is `<endpoint>.delayed`, beside `<endpoint>.delayed.marker`.
"""
TABLES: Final = {
    "timeouts": "A row is a pending timeout, in the order (endpoint, due, id); on PostgreSQL "
    "optionally in [ranges of due times](partitions.md).",
    "timeout_keys": "A row is an id that was stored, perhaps as a tombstone, with a digest of its "
    "message in `content`. Only this table decides whether an id is already known.",
    "timeout_history": "A row is an outcome, without a body; the outcome of a cancel also has the "
    "channel of its request.",
    "claims": "A row is a claimed chunk: an interval of (due, id), its owner, its expiry.",
    "endpoints": "A row is an endpoint that uses these tables, with the marker that its broker "
    "has too.",
    "processes": "A row is the heartbeat of a process.",
    "recurring": "A row is a schedule of an endpoint: its text, its next run, its pause.",
    "runs": "A row is a run of a [migration](migration.md), of a [pipeline job](pipeline.md) or of "
    "a [bulk change](../how-to/change-many.md), as `kind` says: its terms, state, runner and "
    "report.",
    "batches": "A row is a batch of a run: for a migration its range of keys and its counts, for a "
    "job its count.",
    "batch_claims": "A row is a claim on a batch of a migration, with its owner.",
    "fencing_tokens": "A row is the fencing token of a run in its target: once the token is shut, "
    "no delivery of the run commits.",
    "queues": "A row is a queue of our SQL queue.",
    "queue_messages": "A row is a message in a queue, with its lease.",
    "queue_owners": "A row is an owner of a queue: a process that declared it, if the queue is "
    "deleted with its last owner, or a process that consumes it.",
    "queue_bindings": "A row binds a queue to an exchange of kombu.",
    "queue_markers": "A row is the marker of an endpoint, on the side of the broker.",
    "dead_letters": "A row is a [dead letter](dead-letter-queues.md) of a node.",
    "awaiting_final_ack": "A row is the copy of a transactional message whose result is not known.",
    "journal": "A row is the copy of a delivered message.",
    "cleared_sagas": "A row is the last clear of a saga, kept for a day: it applies to messages "
    "that another consumer was handling. Or it is a cancel by a label or a saga, kept for a week: "
    "it applies to messages that waited to be stored.",
    "timeout_labels": "A row is a label of a pending timeout, at the key of the timeout.",
    "pauses": "A row is a [pause](../how-to/pause-a-destination.md) of a destination, or of all "
    "destinations: the place of its parked timeouts, and who paused why.",
    "audit": "A row is a change of timeouts, or an attempted change: who, by which channel, why, "
    "with the hash of the previous row of its `chain`. Rows are only inserted.",
    "run_keys": "A row is a timeout that a bulk change has selected, in its state at that time.",
    "load": "A row is a background count while a person views a histogram: the number of timeouts "
    "whose next attempt is within `width` from `bucket` on, as of `as_of`. An empty `destination` "
    "means all destinations. `destinations` is the number of destinations with a separate row, "
    "null if they were not requested or are too many. The first bucket has all overdue timeouts.",
    "load_passes": "A row is the pass that counts the buckets of one width: when it ended, and "
    "while it runs, its first and last instant, the last counted timeout, and the count of the "
    "last bucket so far.",
    "first_attempts": "A row is a delayed message that could not be sent, with the time of its "
    "first attempt.",
    "dead_letter_nodes": "A row is a node: its GUID, and the size of its copies. Every change of "
    "its copies locks the row first.",
}

KINDS: Final = {
    "BigInteger": "64 bit integer",
    "KeyText": "text, compared by bytes",
    "LargeBinary": "bytes",
    "SmallInteger": "16 bit integer",
}


def classes() -> list[type[TimeoutManagerError]]:
    """Return every public error of the package, each behind its base."""
    known = "|".join(name for name, one in vars(errors).items() if inspect.isclass(one))
    for path in house.sources():
        if re.search(rf"^class [A-Z]\w*\((?:{known})\b", path.read_text(), re.MULTILINE):
            parts = path.relative_to(house.ROOT).with_suffix("").parts
            name = ".".join(parts if parts[0] == "timeoutmgr" else ("timeoutmgr", *parts))
            importlib.import_module(name)
    return list(_below(TimeoutManagerError))


def _below(base: type[TimeoutManagerError]) -> Iterator[type[TimeoutManagerError]]:
    yield base
    for found in sorted(base.__subclasses__(), key=lambda one: one.__name__):
        if not found.__name__.startswith("_") and found.__module__.startswith("timeoutmgr"):
            yield from _below(found)


def errors_page() -> str:
    """Return the page of errors."""
    return "\n".join([HEAD, *(line for found in classes() for line in _section(found))])


def _section(found: type[TimeoutManagerError]) -> Iterator[str]:
    yield f"## {found.__name__}"
    yield ""
    yield _markdown(inspect.getdoc(found) or "")
    yield ""
    above = found.__mro__[1]
    if issubclass(above, TimeoutManagerError):
        yield f"* Base: [{above.__name__}](#{above.__name__.lower()})"
    yield f"* Import: `from {found.__module__} import {found.__name__}`"
    yield f"* Exit code of a command: {_exit_code(found).value}"
    yield ""


def _exit_code(found: type[TimeoutManagerError]) -> Exit:
    return exit_of(found.__new__(found))


def _markdown(text: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", text)


def tables_page() -> str:
    """Return the page of tables, with the columns of the newest revision."""
    made = [
        *timeout_tables(None, "timeoutmgr_").timeouts.metadata.sorted_tables,
        *queue_tables(None, "timeoutmgr_").metadata.sorted_tables,
        *dead_letter_tables(None, "timeoutmgr_").nodes.metadata.sorted_tables,
    ]
    found = {table.name.removeprefix("timeoutmgr_"): table for table in made}
    assert set(found) == set(TABLES), set(found) ^ set(TABLES)
    return "\n".join(
        [TABLES_HEAD, *(line for name in TABLES for line in _table(name, found[name]))]
    )


def _table(name: str, table: Table) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    yield f"{TABLES[name]} Columns:"
    yield ""
    for column in table.columns:
        key = " (key)" if column.primary_key else ""
        yield f"* `{column.name}` {_kind(column)}{key}"
    yield ""


def _kind(column: Column[Any]) -> str:
    kind = type(column.type).__name__
    return KINDS.get(kind, kind.lower())


METRICS_HEAD: Final = """\
# Metrics

`tests/docs/test_generated.py` makes this page from `timeoutmgr/metrics/catalogue.py`, and fails
when it is stale.

`timeoutmgr run --metrics-address` shows these metrics to Prometheus:
[Watch with Prometheus](../how-to/prometheus.md). Each metric has the label `endpoint`. A
label `destination` has the first 50 destinations, and `other` for further destinations. With
`--processes`, one address shows all processes: counters and histograms are sums, and the line of a
gauge names the process whose value it shows.

`Endpoint.snapshot()` returns the counters and values of its process, without the prefix
`timeoutmgr_` and the suffix `_total`, and the state of each breaker (`breaker_…`). The health file
of `timeoutmgr run --health-file` has them too; its `lateness_seconds` is the last lateness.
`config.telemetry = …` sets a telemetry of your own, whose methods `count` and `value` get each
event. Many threads call these methods on hot paths: they must be fast, and must not raise.
Counters begin at 0 in each process.

The metric that should page a person is `timeoutmgr_oldest_due_age_seconds`.

| name | kind | labels | meaning |
|---|---|---|---|
"""
NAMED_ELSEWHERE: Final = {
    *(f"delayed_{outcome}" for outcome in ("dispatched", "failed")),
    *(f"timeouts_{outcome}" for outcome in ("dispatched", "failed", "retry")),
    *(event for event, _level, _did in _REPORTS.values()),
}
"""Names that a call makes out of a prefix, or takes from a table."""


def counted() -> dict[str, str]:
    """Return each name that the source counts, and whether it is a counter or a value."""
    found = dict.fromkeys(NAMED_ELSEWHERE, "counter")
    for called, names in _calls():
        if _counts(called):
            kind = "counter" if ast.unparse(called).endswith(".count") else "value"
            found |= dict.fromkeys(names, kind)
    return found


def counted_by_label() -> set[str]:
    """Return each name that the source counts by a label."""
    return {
        name for called, names in _calls() if "count_each" in ast.unparse(called) for name in names
    }


@cache
def _calls() -> list[tuple[ast.expr, list[str]]]:
    """Return each call of a method that may count, with the texts of its first argument."""
    return [
        (node.func, _texts(node.args[0]))
        for path in house.sources()
        if re.search(r"count|value", text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and node.args and _may_count(node.func)
    ]


def _may_count(called: ast.expr) -> bool:
    name = called.attr if isinstance(called, ast.Attribute) else ast.unparse(called)
    return name in ("count", "value") or "count_each" in name


def _counts(called: ast.expr) -> bool:
    is_event = isinstance(called, ast.Attribute) and called.attr in ("count", "value")
    return is_event and "telemetry" in ast.unparse(called)


def _texts(given: ast.expr) -> list[str]:
    if isinstance(given, ast.JoinedStr):
        return []
    return [
        node.value
        for node in ast.walk(given)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def metrics_page() -> str:
    """Return the page of the catalogue."""
    return METRICS_HEAD + "".join(_metric(metric) for metric in CATALOGUE)


def _metric(metric: Metric) -> str:
    labels = ", ".join(metric.labels) or "-"
    several = metric.kind is Kind.GAUGE and metric is not PROCESSES
    merged = f"; of several processes, the {MERGED[metric.merge]}" if several else ""
    suffix = "" if metric.kind is Kind.HISTOGRAM else metric.exported.removeprefix(metric.family)
    return f"| `{metric.family}{suffix}` | {metric.kind} | {labels} | {metric.help}{merged} |\n"


MERGED: Final = {
    Merge.MAX: "largest",
    Merge.MIN: "smallest",
    Merge.FARTHEST: "value farthest from 0",
}


PAGES: Final = {
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "tables.md": tables_page,
}


if __name__ == "__main__":
    for name, text in PAGES.items():
        (DOCS / "reference" / name).write_text(text())
