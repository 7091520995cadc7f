"""Rows of a data set as timeouts to store, each with the reasons for its rejection.

Spark expressions repeat the rules of ``timeoutmgr.message.validation`` and
``timeoutmgr.sender.composer``, so that a million rows never pass through Python; ``tests/pipeline``
checks that both give the same results.
"""

import fnmatch
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t

from timeoutmgr.message import headers
from timeoutmgr.message.instants import LATEST, duration_micros, to_wire
from timeoutmgr.message.routes import NAMESPACE
from timeoutmgr.message.validation import (
    DESTINATION_BYTES,
    ID_CHARACTERS,
    SATELLITES,
    UNFIT,
    Limits,
)
from timeoutmgr.pipeline.errors import WrongColumns
from timeoutmgr.pipeline.options import COLUMNS, TEXTS, RequestRules
from timeoutmgr.pipeline.transforms.instants import EXPECTED, instant, is_thinkable
from timeoutmgr.pipeline.views import TO_STORE
from timeoutmgr.sender.composer import RESERVED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# In Java $ also matches before a final line end; only \z is the end.
_PRINTABLE: Final = r"^[ [^\p{C}\p{Z}]]{1,200}\z"
_SECONDS: Final = r"^\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*\z"
"""A decimal number: Java would also read ``30d`` as 30, and hexadecimal digits."""
_SHORT_STRING: Final = 255
"""Maximum bytes of an AMQP short string; the columns of every database can hold as many."""
_LONGEST_DELAY: Final = 8_000 * 365 * 86_400
BY_THEIR_NAMES: Final[Mapping[str, str]] = MappingProxyType({})
_EXACT: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""Times in JSON to the microsecond: by default Spark writes only milliseconds."""
_WIRE: Final = "yyyy-MM-dd HH:mm:ss:SSSSSS 'Z'"


def normalised(
    frame: "DataFrame", columns: Mapping[str, str] = BY_THEIR_NAMES, *, ignore_extra: bool = False
) -> "DataFrame":
    """Return *frame* with all of COLUMNS: missing columns are empty.

    Names are compared without regard to case. *columns* maps a name in COLUMNS to the name in
    *frame*. With *ignore_extra*, other columns are left out.

    Raises WrongColumns for a frame without destination, or without due time and delay, for times
    without a zone, for unfit types, and for columns that are not read.
    """
    found, problems = _found(frame.schema, columns, ignore_extra=ignore_extra)
    problems += [f"has no column {name!r}" for name in ("destination", "body") if name not in found]
    if not {"due", "delay"} & found.keys():
        problems.append("has no column 'due' and no column 'delay'")
    for name, field_ in found.items():
        problems += _misfit(name, field_.dataType)
    if problems:
        raise WrongColumns("the data set", problems)
    return frame.select(
        *(
            f.col(_quoted(found[name].name)).alias(name)
            if name in found
            else f.lit(None).cast("string").alias(name)
            for name in COLUMNS
        )
    )


def _found(
    schema: t.StructType, columns: Mapping[str, str], *, ignore_extra: bool
) -> tuple[dict[str, t.StructField], list[str]]:
    """Return the fields of *schema* by their names in COLUMNS, and the problems."""
    wanted = {theirs.lower(): ours for ours, theirs in columns.items()}
    found: dict[str, t.StructField] = {}
    problems, extra = [], []
    for one in schema.fields:
        name = wanted.get(one.name.lower(), one.name.lower())
        is_mapped = name in columns and one.name.lower() not in wanted
        if name not in COLUMNS or is_mapped:
            extra.append(one.name)
        elif name in found:
            problems.append(f"has two columns for {name!r}: {found[name].name!r} and {one.name!r}")
        else:
            found[name] = one
    problems += [
        f"has no column {theirs!r}, which --map names for {ours!r}"
        for ours, theirs in columns.items()
        if ours not in found
    ]
    if extra and not ignore_extra:
        problems.append(
            f"has a column {min(extra)!r} that is not read; known: {', '.join(COLUMNS)}. Leave "
            "such columns out with --ignore-extra, or say by --map KNOWN=COLUMN which of them it is"
        )
    return found, problems


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _misfit(name: str, kind: t.DataType) -> list[str]:
    if isinstance(kind, t.TimestampNTZType):
        return [f"column {name!r} has times without a zone; store them adjusted to UTC"]
    fits: dict[str, tuple[type[t.DataType], ...]] = {
        "due": (t.TimestampType, t.StringType, t.IntegralType),
        "delay": (t.NumericType, t.StringType),
        "body": (t.StringType, t.BinaryType, t.StructType, t.MapType, t.ArrayType),
        "headers": (t.StringType, t.MapType),
    }
    wanted = fits.get(name, (t.StringType, t.IntegralType))
    if isinstance(kind, (*wanted, t.NullType)):
        return []
    names = " or ".join(one.__name__.removesuffix("Type").lower() for one in wanted)
    return [f"column {name!r} is {kind.simpleString()}, expected {names}; write it as one of these"]


def judged(requests: "DataFrame", rules: RequestRules) -> "DataFrame":
    """Return the timeouts that *requests* describe, with ``reasons`` if a row is rejected.

    The columns are ``views.TO_STORE``, ``reasons``, ``content`` (a digest, equal for two rows with
    one key if they are the same message), and ``input``, the row as JSON if it has reasons.
    """
    kinds: Mapping[str, t.DataType] = {one.name: one.dataType for one in requests.schema.fields}
    texts = {name: f.col(name).cast("string") for name in TEXTS}
    # CSV does not distinguish an empty text from a missing value.
    own_type = f.nullif(texts["message_type"], f.lit(""))
    texts["message_type"] = f.coalesce(own_type, f.lit(rules.message_type))
    when, when_wrong = _when(kinds, rules)
    body, body_wrong = _body(kinds["body"], texts["body_encoding"], rules.limits)
    given, headers_wrong = _headers(kinds["headers"], texts["message_type"], rules.limits)
    read = requests.select(
        *(column.alias(name) for name, column in texts.items()),
        when.alias("due"),
        body.alias("body"),
        _content_type(kinds["body"], texts["content_type"]).alias("content_type_"),
        given.alias("given"),
        _message_id(texts, kinds, rules).alias("message_id"),
        f.array_compact(f.array(*when_wrong, *body_wrong, *headers_wrong)).alias("first_reasons"),
        f.to_json(f.struct(*_shown(kinds)), _EXACT).alias("input"),
    )
    reasons = f.concat(f.col("first_reasons"), f.array_compact(f.array(*_names_wrong(rules))))
    named = read.select(
        f.lit(rules.endpoint).alias("endpoint"),
        timeout_id(rules.endpoint, f.col("message_id")).alias("id"),
        "due",
        "destination",
        "saga_id",
        "message_id",
        _all_headers(rules).alias("headers"),
        "body",
        f.col("content_type_").alias("content_type"),
        f.lit("utf-8").alias("content_encoding"),
        f.timestamp_micros(f.lit(rules.now)).alias("created"),
        reasons.alias("reasons"),
        _content().alias("content"),
        "input",
    )
    return named.select(*TO_STORE.names, "reasons", "content", "input")


def _content() -> "Column":
    # Use sorted headers, not the stored text: their order is not content.
    given = f.array_sort(f.map_entries("given"))
    parts = ("due", "destination", "saga_id", "message_type", "content_type_", "body")
    return f.xxhash64(*parts, given)


def timeout_id(endpoint: str, message_id: "Column") -> "Column":
    """Return the id of the timeout that holds *message_id*, as ``routing.timeout_id`` makes it."""
    before = NAMESPACE.bytes + f"{len(endpoint)}:{endpoint}".encode()
    digest = f.sha1(f.concat(f.lit(before), f.encode(message_id, "UTF-8")))
    # One digit is the version 5; another digit holds the two bits of the UUID's variant.
    variant = f.translate(f.substring(digest, 17, 1), "0123456789abcdef", "89ab89ab89ab89ab")
    return f.concat(
        *(f.substring(digest, 1, 8), f.lit("-"), f.substring(digest, 9, 4), f.lit("-5")),
        *(f.substring(digest, 14, 3), f.lit("-"), variant, f.substring(digest, 18, 3)),
        *(f.lit("-"), f.substring(digest, 21, 12)),
    )


def _because(condition: "Column", reason: str) -> "Column":
    return f.when(condition, f.lit(reason))


def _when(kinds: Mapping[str, t.DataType], rules: RequestRules) -> tuple["Column", list["Column"]]:
    """Return the due time of a row, and the reasons against it."""
    raw, text = f.col("due"), f.col("delay").cast("string")
    delay = f.when(text.rlike(_SECONDS), text.try_cast("double"))
    at = instant(raw, kinds["due"])
    now = f.timestamp_micros(f.lit(rules.now))
    in_range = (delay >= 0) & (delay <= _LONGEST_DELAY)
    later = f.when(
        in_range,
        # Rounded up, so that the message is never early.
        f.timestamp_micros(f.lit(rules.now) + f.ceil(delay * 1_000_000).cast("bigint")),
    )
    due = f.coalesce(at, later)
    is_past = due <= now
    wrong = [
        _because(raw.isNull() & f.col("delay").isNull(), "neither due nor delay is given"),
        _because(raw.isNotNull() & f.col("delay").isNotNull(), "due and delay exclude each other"),
        _because(
            raw.isNotNull() & at.isNull(), f"due is not an instant with a zone, such as {EXPECTED}"
        ),
        _because(
            f.col("delay").isNotNull() & later.isNull(), "delay is not a number of seconds from 0"
        ),
    ]
    wrong.append(_because(~is_thinkable(due), "due lies outside the years 1 to 9999"))
    if rules.past == "reject":
        wrong.append(_because(is_past, "due has passed"))
    if rules.limits.max_delay is not None:
        ahead = f.timestamp_micros(f.lit(rules.now + duration_micros(rules.limits.max_delay)))
        wrong.append(_because(due > ahead, "due is further ahead than max_delay"))
    return (f.when(is_past, now).otherwise(due) if rules.past == "shift" else due), wrong


def _body(kind: t.DataType, encoding: "Column", limits: Limits) -> tuple["Column", list["Column"]]:
    raw = f.col("body")
    if isinstance(kind, t.BinaryType):
        body = raw
    elif isinstance(kind, t.StringType):
        decoded = f.try_to_binary(raw, f.lit("base64"))
        body = f.when(encoding == "base64", decoded).otherwise(f.encode(raw, "UTF-8"))
    else:
        body = f.encode(f.to_json(raw, _EXACT), "UTF-8")
    return body, [
        _because(raw.isNull(), "body is empty"),
        _because(
            encoding.isNotNull() & ~encoding.isin("utf8", "base64"),
            "body_encoding is utf8 or base64",
        ),
        _because(raw.isNotNull() & body.isNull(), "body is not base64"),
        *([_no_text("body")] if isinstance(kind, t.StringType) else []),
        _because(f.octet_length(body) > limits.max_body, "body is over limits.max_body"),
    ]


def _no_text(name: str) -> "Column":
    # Spark accepts bytes as a text without a check, and would store a damaged text.
    return _because(~f.is_valid_utf8(name), f"{name} is not UTF-8")


def _content_type(kind: t.DataType, given: "Column") -> "Column":
    plain = "application/octet-stream" if isinstance(kind, t.BinaryType) else "application/json"
    return f.coalesce(f.nullif(given, f.lit("")), f.lit(plain))


def _headers(
    kind: t.DataType, message_type: "Column", limits: Limits
) -> tuple["Column", list["Column"]]:
    raw = f.col("headers")
    is_text = isinstance(kind, t.StringType)
    given = _texts_in(raw) if is_text else raw.cast("map<string,string>")
    size = f.aggregate(
        f.map_entries(given),
        f.lit(0),
        lambda sum_, one: sum_ + f.octet_length(one["key"]) + f.octet_length(one["value"]),
    )
    # The message type becomes a header of any length.
    size = f.coalesce(size, f.lit(0)) + f.coalesce(f.octet_length(message_type), f.lit(0))
    names = f.map_keys(given)
    if is_text:
        is_valid = f.is_valid_utf8(raw)
    else:
        is_valid = f.forall(f.concat(names, f.map_values(given)), f.is_valid_utf8)
    reserved = f.exists(
        names,
        lambda name: (
            name.isin(*sorted(RESERVED))
            | name.startswith(headers.PROPERTY_PREFIX)
            | f.lower(name).isin(*sorted(headers.BROKER_HEADERS))
        ),
    )
    return given, [
        _because(raw.isNotNull() & given.isNull(), "headers are not a JSON object of texts"),
        _because(f.exists(f.map_values(given), lambda one: one.isNull()), "a header has no value"),
        _because(_is_twice(names), "a header is given twice"),
        _because(
            (size > _SHORT_STRING)
            & f.exists(names, lambda name: f.octet_length(name) > _SHORT_STRING),
            f"the name of a header has more than {_SHORT_STRING} bytes",
        ),
        _because(~is_valid, "headers are not UTF-8"),
        # The headers that are added take about a kilobyte.
        _because(size > limits.max_headers - 2_048, "headers are over limits.max_headers"),
        _because(reserved, "a header is one that the timeout manager or the broker sets itself"),
    ]


def _texts_in(raw: "Column") -> "Column":
    """Return the JSON object *raw* as a map; null if a value is neither a text nor null."""
    # Parsed directly as texts, a number would become the text of its digits.
    values = f.map_values(f.from_json(raw, "map<string,variant>"))
    kinds = f.transform(values, lambda one: f.coalesce(f.schema_of_variant(one), f.lit("VOID")))
    strange = f.exists(kinds, lambda kind: ~kind.isin("STRING", "VOID"))
    return f.when(~strange, f.from_json(raw, "map<string,string>"))


def _is_twice(names: "Column") -> "Column":
    return f.size(f.array_distinct(names)) < f.size(names)


def _names_wrong(rules: RequestRules) -> list["Column"]:
    destination, key, saga = f.col("destination"), f.col("key"), f.col("saga_id")
    longest = ID_CHARACTERS - len(rules.dataset) - 1
    wrong = [
        _because(destination.isNull() | (destination == ""), "destination is empty"),
        _because(
            f.octet_length(destination) > DESTINATION_BYTES,
            f"destination has more than {DESTINATION_BYTES} bytes",
        ),
        _because(destination.rlike(UNFIT), "destination has control characters or invisible signs"),
        _because(
            f.greatest(*(destination.endswith(one) for one in SATELLITES))
            | destination.startswith("amq."),
            "destination belongs to the broker or to a timeout manager",
        ),
        _because(f.col("message_type").isNull() | (f.col("message_type") == ""), "no message_type"),
        _because(
            key.isNotNull() & ~key.rlike(rf"^[ -~]{{1,{longest}}}\z"),
            f"key is not 1 to {longest} printable ASCII characters",
        ),
        _because(saga.isNotNull() & ~saga.rlike(_PRINTABLE), "saga_id is not 1 to 200 characters"),
        _because(
            f.octet_length("content_type_") > _SHORT_STRING,
            f"content_type has more than {_SHORT_STRING} bytes",
        ),
        _because(f.contains("content_type_", f.lit("\0")), "content_type has a NUL"),
        *(_no_text(name) for name in ("destination", "saga_id", "message_type", "content_type")),
    ]
    wrong += _against(destination, rules.limits)
    if rules.unknown:
        wrong.append(
            _because(destination.isin(*sorted(rules.unknown)), "there is no queue of that name")
        )
    return wrong


def _against(destination: "Column", limits: Limits) -> list["Column"]:
    """Return the reasons for which ``validation.check_destination`` refuses a destination."""
    wrong = []
    if limits.refused_destinations:
        refused = "|".join(_java(one) for one in limits.refused_destinations)
        wrong.append(
            _because(destination.rlike(rf"^({refused})\z"), "destination is a refused one")
        )
    if limits.allowed_destinations:
        allowed = "|".join(_java(one) for one in limits.allowed_destinations)
        wrong.append(
            _because(~destination.rlike(rf"^({allowed})\z"), "destination is not an allowed one")
        )
    return wrong


def _java(pattern: str) -> str:
    return fnmatch.translate(pattern).removesuffix(r"\Z")


def _message_id(
    texts: Mapping[str, "Column"], kinds: Mapping[str, t.DataType], rules: RequestRules
) -> "Column":
    return f.concat(f.lit(f"{rules.dataset}/"), f.coalesce(texts["key"], _digest(kinds)))


def _digest(kinds: Mapping[str, t.DataType]) -> "Column":
    """Return a digest of the columns that the input has.

    Earlier versions cut all times in the digest to milliseconds. Rows due on a whole millisecond
    keep that digest, so that rows of earlier versions are recognized.
    """
    row = f.struct(*_shown(kinds))
    is_finer = f.lit("timestamp" in kinds["body"].simpleString())
    if isinstance(kinds["due"], t.TimestampType):
        micros = f.unix_micros("due")
        is_finer = is_finer | (f.coalesce(f.pmod(micros, f.lit(1_000)), f.lit(0)) > 0)
    return f.sha2(f.when(is_finer, f.to_json(row, _EXACT)).otherwise(f.to_json(row)), 256)


def _shown(kinds: Mapping[str, t.DataType]) -> list["Column"]:
    """Return the columns that the input has, converted for JSON."""
    return [f.col(name) for name, kind in kinds.items() if name in COLUMNS]


def _all_headers(rules: RequestRules) -> "Column":
    """Return the headers that ``Composer`` and the store's satellite give such a message."""
    message_id = f.col("message_id")
    own: dict[str, Any] = {
        headers.MESSAGE_ID: message_id,
        headers.CORRELATION_ID: message_id,
        headers.CONVERSATION_ID: message_id,
        headers.ENCLOSED_MESSAGE_TYPES: f.col("message_type"),
        headers.CONTENT_TYPE: f.col("content_type_"),
        headers.MESSAGE_INTENT: f.lit("Send"),
        headers.TIME_SENT: f.lit(to_wire(rules.now)),
        headers.ORIGINATING_ENDPOINT: f.lit(rules.endpoint),
        headers.REPLY_TO: f.lit(rules.endpoint),
        headers.DELIVER_AT: f.date_format("due", _WIRE),
        headers.SAGA_ID: f.col("saga_id"),
    }
    fields = f.to_json(f.struct(*(column.alias(name) for name, column in own.items())))
    given = f.col("given")
    both = f.map_concat(
        f.map_filter(
            f.from_json(fields, "map<string,string>"),
            lambda name, _value: ~f.map_contains_key(given, name),
        ),
        given,
    )
    # Spark cannot make a map with a name that is given twice, not even for a reject.
    plain = given.isNull() | (f.size(given) == 0) | _is_twice(f.map_keys(given))
    return f.when(plain, fields).otherwise(f.to_json(both))


def smeared(timeouts: "DataFrame", hot: "DataFrame", jitter: timedelta) -> "DataFrame":
    """Return *timeouts*, up to *jitter* later if they are due in *hot* seconds (column ``second``).

    A timeout is never earlier. The delay depends only on the id, so that another run gives the same
    due time. If the rows have headers, the header with the due time changes, too.
    """
    later = f.pmod(f.xxhash64("id"), f.lit(duration_micros(jitter)))
    moved = f.timestamp_micros(f.least(f.unix_micros("due") + later, f.lit(LATEST)))
    names = timeouts.columns
    marked = timeouts.withColumn("second", f.date_trunc("second", "due")).join(
        f.broadcast(hot.select("second", f.lit(True).alias("is_hot"))), "second", "left"
    )
    changed = {"due": f.when(f.col("is_hot"), moved).otherwise(f.col("due"))}
    if "headers" in names:
        changed["headers"] = f.replace(
            f.col("headers"),
            f.concat(f.lit(f'"{headers.DELIVER_AT}":"'), f.date_format("due", _WIRE)),
            f.concat(f.lit(f'"{headers.DELIVER_AT}":"'), f.date_format(changed["due"], _WIRE)),
        )
    return marked.withColumns(changed).select(*names)
