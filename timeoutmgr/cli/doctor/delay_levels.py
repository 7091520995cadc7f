"""Native delayed delivery, for ``status`` and ``doctor``: the levels and their messages."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.cli.doctor.findings import ok, warn
from timeoutmgr.contracts.reports import Finding, Level

if TYPE_CHECKING:
    from timeoutmgr.endpoint.assembly import AssembledEndpoint

_ALWAYS_AT_LEAST_ONCE: Final = (3, 12)
"""From this version on, RabbitMQ cannot disable the feature flag stream_queue."""


def native_status(parts: "AssembledEndpoint") -> dict[str, Any] | None:
    """Return the number of messages in each level, and advice about the timeout manager."""
    native = parts.features.native_delays
    if native is None:
        return None
    from timeoutmgr.features.leftovers import advice, find_leftovers
    from timeoutmgr.native.feature import native_feature

    counts = native_feature(parts.settings).levels(parts.settings).counts()
    found = find_leftovers(parts.settings)
    return {
        "levels": {name: count for name, count in counts.items() if count},
        "delayed": sum(counts.values()),
        "timeout_manager": advice(parts.settings, found, falls_back=native.falls_back),
        "timeout_manager_pending": found.pending,
    }


def native_findings(parts: "AssembledEndpoint") -> Iterator[Finding]:
    """Yield findings about the levels."""
    native = parts.features.native_delays
    if native is None:
        return
    from timeoutmgr.features.leftovers import advice, find_leftovers
    from timeoutmgr.native.feature import native_feature

    levels = native_feature(parts.settings).levels(parts.settings)
    levels.check()
    shown = f"{levels.names.name}, {levels.queue_type} queues"
    yield ok("delay levels", f"all levels exist ({shown})")
    yield from _alternate(levels.has_alternate(), levels.names.name, levels.names.level)
    with levels.session() as session:
        version = session.server_version
    if levels.queue_type == "classic":
        yield warn(
            "at least once",
            "classic queues pass messages on at most once: a broker that is killed loses messages",
            "accept_loss is set; otherwise use levels of quorum queues",
        )
    elif version < _ALWAYS_AT_LEAST_ONCE:
        yield ok(
            "at least once",
            "RabbitMQ before 3.12 passes messages on at least once only with the feature flag "
            "stream_queue: see `rabbitmqctl list_feature_flags`",
        )
    found = find_leftovers(parts.settings)
    waits = bool(found.pending) and parts.features.store is None
    yield Finding(
        level=Level.WARN if waits else Level.OK,
        check="timeout manager",
        text=advice(parts.settings, found, falls_back=native.falls_back),
    )


def _alternate(is_there: bool, name: str, level: str) -> Iterator[Finding]:
    from timeoutmgr.native.names import UNROUTABLE

    if is_there:
        yield ok("unroutable", f"messages without a queue go to {UNROUTABLE}")
        return
    stem = level.partition("delay")[0].replace(".", r"\.")
    yield warn(
        "unroutable",
        f"the levels {name!r} have no alternate exchange: 32 messages without a queue stop a "
        "level for all endpoints",
        f"rabbitmqctl set_policy timeoutmgr-unroutable '^{stem}' "
        f"""'{{"alternate-exchange":"{UNROUTABLE}"}}' --apply-to exchanges""",
    )
