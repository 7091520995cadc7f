"""Options of the jobs: each is declared once, as a field of a frozen dataclass.

The metadata of a field holds its flag, its help and its checks. The dataclass runs the checks; the
commands get their click options, environment variables and documentation from the same metadata.
The module works without the extra.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from urllib.request import url2pathname

from timeoutmgr.endpoint.configuration import check_endpoint_name
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import Micros, require_window
from timeoutmgr.message.validation import Limits
from timeoutmgr.pipeline.writers.conflicts import KnownIdRule

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMATS: Final = ("parquet", "csv", "json")
PAST: Final = ("reject", "dispatch", "shift")
TEXTS: Final = ("destination", "key", "saga_id", "message_type", "content_type", "body_encoding")
COLUMNS: Final = (*TEXTS, "due", "delay", "body", "headers")
"""The columns of a data set that a job reads; columns in TEXTS are texts."""
GROUPS: Final = ("endpoint", "destination", "day")
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
"""The quantiles of lateness, by their names in reports."""
TABLE: Final = "table:"
DELTA: Final = "delta:"
ICEBERG: Final = "iceberg:"
_FILE: Final = "file:"

_DECLARED: Final = "option"
_LONGEST: Final = timedelta(days=700_000)
"""Longest duration of an option: added to or subtracted from now, it stays in years 1 to 9999."""
# A single letter and a colon are a drive. A single slash suffices: a Path merges two slashes.
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
_BUCKET: Final = re.compile("[^/]+:/{0,2}[^/]*")

_Value = TypeVar("_Value")
Check: TypeAlias = Callable[[str, Any], object]
"""Called with an option's name and value; raises ConfigurationError for a bad value."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """How an option of a job is given on the command line; without *flag* only in Python."""

    flag: str = ""
    help: str = ""
    checks: tuple[Check, ...] = ()
    metavar: str | None = None
    is_required: bool = True
    """Whether the command needs the option if the dataclass has no default for it."""
    shows_default: bool = True


def option(flag: str = "", help: str = "", *checks: Check, **more: Any) -> Mapping[str, Any]:
    """Return the metadata of a field; *more* are fields of ``Declaration``."""
    return {_DECLARED: Declaration(flag, help, checks, **more)}


def optional(default: _Value, flag: str, help: str, *checks: Check, **more: Any) -> _Value:
    """Return a field with that *default*; see ``option`` for the rest."""
    made: _Value = field(default=default, metadata=option(flag, help, *checks, **more))
    return made


def declared_fields(options: "type[DataclassInstance]") -> list[tuple[Field[Any], Declaration]]:
    """Return the fields of *options* that have a declaration, in order."""
    return [(one, one.metadata[_DECLARED]) for one in fields(options) if _DECLARED in one.metadata]


def check_declared(options: "DataclassInstance") -> None:
    """Run the checks that the fields of *options* declare on all given values."""
    for one, declared in declared_fields(type(options)):
        check_value(one.name, declared, getattr(options, one.name))


def check_value(name: str, declared: Declaration, value: Any) -> None:
    """Run the checks of *declared* on the *value* of its field *name*; None counts as not given."""
    for check in declared.checks if value is not None else ():
        check(name, value)
    if isinstance(value, timedelta):
        within_calendar(name, value)


def within_calendar(name: str, value: timedelta | int) -> None:
    """Refuse a duration, or a number of days, that leads out of the years 1 to 9999."""
    if (value.days if isinstance(value, timedelta) else value) > _LONGEST.days:
        raise ConfigurationError(f"{name} is at most {_LONGEST.days} days, got {value}")


def positive(name: str, value: Any) -> None:
    """Refuse values up to zero, and floats that JSON cannot represent."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"{name} is a finite number, got {value}; give such as 500")
    if value <= type(value)(0):
        raise ConfigurationError(f"{name} must be positive, got {value}")


def a_second(name: str, value: timedelta) -> None:
    """Refuse durations under a second."""
    if value < timedelta(seconds=1):
        raise ConfigurationError(f"{name} is at least a second, got {value}")


def not_negative(name: str, value: Any) -> None:
    """Refuse negative values."""
    if value < type(value)(0):
        raise ConfigurationError(f"{name} is not negative, got {value}")


def one_of(*known: str) -> Check:
    """Return a check that refuses all but *known*."""

    def check(name: str, value: str) -> None:
        if value not in known:
            raise ConfigurationError(f"{name} is one of {known}, got {value!r}")

    return check


def folder_option(name: str, value: str | Path) -> Path:
    """Return *value*, the option *name*, as a path; raise ConfigurationError for URLs and patterns.

    As a path, ``s3a://lake/h`` would be a folder ``s3a:`` beside the program, which is never meant.
    Call this before the path is made absolute: then a scheme can no longer be recognized.
    """
    _refuse_signs(name, value, "*?[]{}", "Spark reads as a pattern of names")
    if _SCHEME.match(str(value)):
        raise ConfigurationError(
            f"{name} is a folder of the file system, got the URL {str(value)!r}, which would be "
            "taken for a folder beside this program; mount it, and give the path under which this "
            "process and all of Spark's workers see it"
        )
    _refuse_signs(name, Path(value).name, ":", "Spark takes for the end of a scheme")
    return Path(value)


def _refuse_signs(name: str, value: str | Path, signs: str, why: str) -> None:
    found = next((sign for sign in str(value) if sign in signs), None)
    if found is not None:
        raise ConfigurationError(
            f"{name} is a folder without any of {' '.join(signs)}, which {why}; got "
            f"{str(value)!r}: name another folder"
        )


def with_zone(name: str, value: datetime) -> None:
    """Refuse a time without a zone."""
    if value.tzinfo is None:
        raise ConfigurationError(f"{name} is a time with a zone, got {value}")


def history_place(name: str, value: str) -> str:
    """Return *value*, the place of a history table, in a normal form.

    Raises ConfigurationError for a URL that does not tell the format of the table, for a relative
    folder with a colon (probably a misspelt scheme), for a whole bucket, and for a folder whose
    name the library of the format does not support.
    """
    if value.startswith(ICEBERG):
        return value
    scheme = DELTA if value.startswith(DELTA) else ""
    rest = value.removeprefix(scheme)
    if rest.startswith(_FILE):
        rest = url2pathname(rest.removeprefix(_FILE).removeprefix("//"))
    elif scheme and _SCHEME.match(rest):
        place = value.rstrip("/")
        if _BUCKET.fullmatch(place):
            raise ConfigurationError(
                f"{name} is a whole bucket, got {value!r}; name a folder in it, such as "
                f"{place}/history: other tables have their places beside it"
            )
        return place
    elif ":" in rest and not rest.startswith("/"):
        raise _strange_scheme(name, value, rest)
    if not rest:
        raise ConfigurationError(f"{name} is a history table, got {value!r}; give its folder")
    if scheme:
        _refuse_signs(name, rest, "%[]\\|^", "delta-rs takes for signs of a URL")
    return f"{scheme}{Path(rest).absolute()}"


def _strange_scheme(name: str, value: str, rest: str) -> ConfigurationError:
    if _SCHEME.match(rest):
        remedy = f"the URL {value!r}: put {DELTA} before it"
    else:
        found = rest.partition(":")[0]
        remedy = (
            f"{value!r}, where {found + ':'!r} is none of these; is {DELTA} or {ICEBERG} meant? "
            "For a folder with a colon in its name give the whole path, from /"
        )
    return ConfigurationError(
        f"{name} is {DELTA}URI, {ICEBERG}CATALOG.NAMESPACE.TABLE, or a folder of the file system "
        f"for plain Parquet; got {remedy}"
    )


_PLACES: Final = "delta:URI, iceberg:CATALOG.NAMESPACE.TABLE, or a folder for Parquet."


def history_option(flag: str, help: str = f"The history table: {_PLACES}") -> Mapping[str, Any]:
    """Return the metadata of a field for the place of a history table."""
    return option(flag, help, history_place, metavar="TABLE")


_ARCHIVE: Final = history_option(
    "--archive", "The history table that has older events of these stores."
)
_UNTIL: Final = option("--until", "Only before this time; see --since.", with_zone)
_OF_ENDPOINT: Final = option("--endpoint", "Only timeouts of this endpoint.")
_TO_DESTINATION: Final = option("--destination", "Only messages to this destination.")


def check_dataset(name: str) -> None:
    """Refuse *name* for a data set unless a message id shows where it ends and the key begins."""
    if not re.fullmatch("[ -.0-~]{1,100}", name):
        raise ConfigurationError(
            f"dataset is 1 to 100 printable ASCII characters without '/', got {name!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRules:
    """How rows become timeouts of *endpoint*.

    *dataset* names the data set of the rows: the message id of a row consists of the data set and
    the row's key or, without a key, a digest of its content. *past* is the action for a row that is
    already due: ``reject`` it, ``dispatch`` it unchanged, or ``shift`` it to *now*. *unknown* are
    destinations that do not exist.
    """

    endpoint: str
    dataset: str
    now: Micros
    message_type: str | None = None
    past: str = optional("reject", "", "", one_of(*PAST))
    limits: Limits = field(default_factory=Limits)
    unknown: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Check every value."""
        check_declared(self)
        check_dataset(self.dataset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """Options of ``schedule``: rows of *paths*, files or folders or ``table:NAME``, into *store*.

    *columns* maps schedule's names of columns to the names in the rows. With *multi_line* a CSV
    value may contain line ends, and one task reads a whole file. *rejects* is a folder for rows
    that cannot be scheduled, as JSON with their reasons; the job stores nothing if more than
    *max_reject_ratio* of all rows are rejects. Seconds in which more than *max_per_second* rows are
    due are smeared: their rows become due up to *jitter* later. Only rows for *destination* count,
    and only if they are due, before smearing, from *since* to before *until*; a row without a
    readable due time is in every such window. ``RequestRules`` explains the other fields.
    """

    store: str
    paths: tuple[str, ...] = ()
    dataset: str = field(
        metadata=option("--dataset", "Name of the data set; a part of the message ids of its rows.")
    )
    format: str = optional("parquet", "--format", "parquet, csv or json.", one_of(*FORMATS))
    multi_line: bool = optional(
        False, "--multi-line", "Values of CSV may contain line breaks; one task reads each file."
    )
    columns: Mapping[str, str] = field(
        default_factory=dict,
        metadata=option(
            "--map",
            "Column with another name in the files: due=send_at; may be given many times.",
            metavar="NAME=COLUMN",
        ),
    )
    ignore_extra: bool = optional(
        False, "--ignore-extra", "Ignore columns that schedule does not know."
    )
    endpoint: str = field(
        metadata=option(
            "--endpoint",
            "Endpoint of the timeouts. Without it, the endpoint of the settings.",
            lambda _name, value: check_endpoint_name(value),
            is_required=False,
        )
    )
    message_type: str | None = optional(
        None, "--type", "Message type of rows without a message_type."
    )
    past: str = optional("reject", "--past", "Due rows: reject, dispatch or shift.", one_of(*PAST))
    limits: Limits = field(default_factory=Limits)
    rejects: Path | None = optional(None, "--rejects", "Folder for rejects.", folder_option)
    max_reject_ratio: float = optional(0.0, "--max-reject-ratio", "Highest share of rejected rows.")
    max_per_second: int | None = optional(
        None, "--max-per-second", "Maximum of rows due in a second; see --jitter.", positive
    )
    jitter: timedelta | None = optional(
        None, "--jitter", "How much --max-per-second may delay a row.", positive
    )
    since: datetime | None = optional(None, "--since", "Earliest due time of the rows.", with_zone)
    until: datetime | None = field(default=None, metadata=_UNTIL)
    destination: str | None = field(default=None, metadata=_TO_DESTINATION)
    on_conflict: str = optional(
        KnownIdRule.IGNORE.value,
        "--on-conflict",
        "ignore, verify or error.",
        lambda _name, value: KnownIdRule.named(value),
    )
    run_id: str | None = optional(
        None, "--run-id", "Id of the run. Without it, the id of an equal earlier run, or a new id."
    )
    dry_run: bool = optional(False, "--dry-run", "Only show what would be stored.")

    def __post_init__(self) -> None:
        """Check every value."""
        self.rules(now=0)  # checks the values that rules also have
        if (self.max_per_second is None) != (self.jitter is None):
            raise ConfigurationError("max_per_second and jitter go together; give both or none")
        check_declared(self)
        if self.multi_line and self.format == "parquet":
            raise ConfigurationError("multi_line is for csv and json; Parquet has no lines")
        strange = sorted(self.columns.keys() - set(COLUMNS))
        if strange:
            raise ConfigurationError(
                f"columns maps {strange[0]!r}, expected one of {', '.join(COLUMNS)}"
            )
        if len(self.paths) > 1 and any(one.startswith(TABLE) for one in self.paths):
            raise ConfigurationError(
                f"a table is scheduled alone, got {', '.join(self.paths)}; run the job for each"
            )
        if not 0 <= self.max_reject_ratio <= 1:
            raise ConfigurationError(
                f"max_reject_ratio is between 0 and 1, got {self.max_reject_ratio}"
            )
        require_window(ConfigurationError, since=self.since, until=self.until)

    def rules(self, now: Micros, unknown: frozenset[str] = frozenset()) -> RequestRules:
        """Return the rules for a run at *now*."""
        return RequestRules(
            endpoint=self.endpoint,
            dataset=self.dataset,
            now=now,
            message_type=self.message_type,
            past=self.past,
            limits=self.limits,
            unknown=unknown,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOptions:
    """Options of ``forecast``: the time *ahead* of the stores, in buckets of *bucket*.

    *capacity* is the rate of the senders in messages a second, if known. An overdue timeout counts
    as due now.
    """

    stores: tuple[str, ...]
    bucket: timedelta = optional(timedelta(minutes=1), "--bucket", "Width of a bucket: 1s, 1m, 1h.")
    ahead: timedelta = optional(timedelta(days=7), "--horizon", "How far to look ahead.")
    capacity: float | None = optional(
        None, "--capacity", "Number of messages that can be sent in a second.", positive
    )
    endpoint: str | None = field(default=None, metadata=_OF_ENDPOINT)
    destination: str | None = field(default=None, metadata=_TO_DESTINATION)
    peaks: int = 10

    def __post_init__(self) -> None:
        """Check every value."""
        _require_store(self.stores)
        if self.ahead < self.bucket:
            raise ConfigurationError(
                f"the horizon is at least one bucket ({self.bucket}), got {self.ahead}"
            )
        check_declared(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """Options of ``reconcile``.

    In *archive*, only the history of these stores counts. *accepted* is a file or folder, or
    ``table:NAME`` of Spark's catalog, with the message ids (or timeout ids) that senders know to be
    accepted for *endpoint*'s manager: with this list, the job also finds messages that never
    reached a store. A listed message without a due time is undecided until a store has seen it,
    unless the whole list was accepted before *as_of*, at least *grace* ago. A message that was due
    more than *grace* ago is expected to have ended. *out* is a folder for all verdicts; with it, or
    with *keep*, the report has the verdicts as a frame. The report names *examples* of each bad
    verdict.

    With *since* the job judges only messages that are open, or have an event since then, and does
    not read earlier history. A message that was dispatched before and after *since* is a duplicate
    only to a run without it. *until* leaves out messages due at that time or later, *destination*
    leaves out messages to other destinations.
    """

    stores: tuple[str, ...]
    archive: str | None = field(default=None, metadata=_ARCHIVE)
    accepted: str | None = optional(
        None,
        "--accepted",
        "The message ids that senders know to be accepted; a table is of Spark's catalog.",
        metavar="FILE|table:NAME",
    )
    as_of: datetime | None = optional(
        None,
        "--as-of",
        "All of --accepted was accepted before this time. Without it, a message there that has "
        "no due time and that no store has seen is undecided.",
    )
    endpoint: str | None = optional(
        None, "--endpoint", "Only timeouts of this endpoint, which accepted them."
    )
    accepted_for: str | None = None
    """The endpoint of the list, if messages of other endpoints are judged too."""
    since: datetime | None = optional(
        None, "--since", "Only messages that are open or have an event since this time.", with_zone
    )
    until: datetime | None = optional(
        None, "--until", "Only messages that are due before this time.", with_zone
    )
    destination: str | None = field(default=None, metadata=_TO_DESTINATION)
    grace: timedelta = optional(
        timedelta(minutes=5), "--grace", "Time after due in which a message must end.", not_negative
    )
    late: timedelta = optional(
        timedelta(minutes=1), "--late", "Lateness above which a message is late.", not_negative
    )
    out: Path | None = optional(
        None, "--out", "Folder for all verdicts, as Parquet.", folder_option
    )
    keep: bool = False
    examples: int = 20

    def __post_init__(self) -> None:
        """Check every value."""
        _require_store(self.stores)
        if self.accepted is not None and self.list_of is None:
            raise ConfigurationError("accepted ids belong to an endpoint; give endpoint")
        if self.accepted is not None and self.since is not None:
            raise ConfigurationError(
                "accepted and since exclude each other: a message of the list that ended before "
                "then would be called lost; judge the list by all of the history"
            )
        if self.as_of is not None and (self.accepted is None or self.as_of.tzinfo is None):
            raise ConfigurationError(
                f"as_of is an instant with a zone, of a list of accepted ids; got {self.as_of} and "
                f"accepted {self.accepted!r}"
            )
        if self.accepted in ("", TABLE):
            raise ConfigurationError(
                f"accepted is a file, a folder, or {TABLE}NAME, where NAME is a table of Spark's "
                f"catalog; got {self.accepted!r}"
            )
        check_declared(self)

    @property
    def list_of(self) -> str | None:
        """The endpoint whose manager accepted the messages of the list."""
        return self.accepted_for or self.endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class LatenessOptions:
    """Options of ``lateness``: *quantile* of each group *by* some columns is at most *slo*.

    In *archive*, only the history of these stores counts; without a store, all history. Messages
    count if they were dispatched from *since* to before *until*. *approximate* quantiles take less
    memory if a group has many millions of messages. The report lists the *named* worst groups, but
    counts all groups.
    """

    stores: tuple[str, ...]
    archive: str | None = field(default=None, metadata=_ARCHIVE)
    by: tuple[str, ...] = optional(GROUPS, "--by", "Columns of the groups, separated by commas.")
    quantile: str = optional("p99", "--quantile", "p50, p90, p99 or p999.", one_of(*QUANTILES))
    slo: timedelta = optional(
        timedelta(minutes=1), "--slo", "Highest allowed value of that quantile.", not_negative
    )
    since: datetime | None = optional(
        None, "--since", "Only messages that were dispatched at this time or later.", with_zone
    )
    until: datetime | None = field(default=None, metadata=_UNTIL)
    endpoint: str | None = field(default=None, metadata=_OF_ENDPOINT)
    destination: str | None = field(default=None, metadata=_TO_DESTINATION)
    approximate: bool = optional(
        False, "--approximate", "Compute quantiles within 1 rank in 10,000, in less memory."
    )
    named: int = 10_000

    def __post_init__(self) -> None:
        """Check every value."""
        if not self.stores and self.archive is None:
            raise ConfigurationError("neither a store nor an archive is given")
        if not self.by or not {*self.by} <= {*GROUPS}:
            raise ConfigurationError(f"by is some of {GROUPS}, got {self.by}")
        check_declared(self)
        if self.named < 1:
            raise ConfigurationError(f"named is at least 1, got {self.named}")
        require_window(ConfigurationError, since=self.since, until=self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Options of ``report``: the last *days* and the time *ahead* of the stores.

    In *archive*, only the history of these stores counts. A message keeps the *promise* if it was
    dispatched at most that long after its due time.
    """

    stores: tuple[str, ...]
    archive: str | None = field(default=None, metadata=_ARCHIVE)
    promise: timedelta = optional(
        timedelta(seconds=1), "--promise", "Maximum promised lateness of a dispatch.", not_negative
    )
    days: int = optional(56, "--days", "Days of history, up to now.", positive, within_calendar)
    ahead: timedelta = optional(timedelta(days=7), "--horizon", "How far to look ahead.", a_second)

    def __post_init__(self) -> None:
        """Check every value."""
        _require_store(self.stores)
        check_declared(self)


_TO: Final = history_option("--to")
_BATCH_EVENTS: Final = 500_000
_ANY_TIMELINE: Final = option(
    "--any-timeline",
    "Continue after a failover in which no transaction was lost (synchronous replication).",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """Options of ``archive``: history older than *older_than* moves from *store* to the table *to*.

    *purge* removes archived rows from the store, *batch* rows in a transaction. A commit of the
    table has about *batch_events* events. *any_timeline*: see ``StreamOptions``. *with_pending*
    also writes all history, and pending timeouts with headers and body, for a ``restore``.
    """

    store: str
    to: str = field(metadata=_TO)
    older_than: timedelta = field(metadata=option("--older-than", "Minimum age to remove: 30d."))
    purge: bool = optional(True, "--keep", "Keep the events until a run without this option.")
    batch: int = optional(5_000, "--batch", "Number of rows removed in one transaction.")
    batch_events: int = optional(_BATCH_EVENTS, "", "", positive)
    any_timeline: bool = field(default=False, metadata=_ANY_TIMELINE)
    with_pending: bool = optional(
        False,
        "--with-pending",
        "Also write complete pending messages, into a table `pending` beside history.",
    )

    def __post_init__(self) -> None:
        """Check every value."""
        check_declared(self)
        if self.older_than < timedelta(minutes=1):
            raise ConfigurationError(
                f"older_than is at least a minute, so that nothing is archived that is still being "
                f"written; got {self.older_than}"
            )
        if not 1 <= self.batch <= 100_000:
            raise ConfigurationError(f"batch is 1 to 100000 rows, got {self.batch}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of ``stream``: the history of *store* into the table *to*.

    With *once* the stream ends after the present events. Otherwise it reads again after *every*, or
    at once if a commit has left events. With *any_timeline* it continues after a failover to a
    server that has every transaction of its predecessor.
    """

    store: str
    to: str = field(metadata=_TO)
    every: timedelta = optional(
        timedelta(seconds=10), "--every", "Time between two commits.", positive
    )
    once: bool = optional(False, "--once", "End when all events of this moment are written.")
    batch_events: int = optional(_BATCH_EVENTS, "", "", positive)
    any_timeline: bool = field(default=False, metadata=_ANY_TIMELINE)

    def __post_init__(self) -> None:
        """Check every value."""
        check_declared(self)


def _require_store(stores: Sequence[str]) -> None:
    if not stores:
        raise ConfigurationError("no store is given; name at least one")
