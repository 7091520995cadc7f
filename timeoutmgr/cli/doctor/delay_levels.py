"""What status and doctor say of native delayed delivery."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.cli.findings import Finding, Level

if TYPE_CHECKING:
    from timeoutmgr.assembly import Parts

_ALWAYS_AT_LEAST_ONCE: Final = (3, 12)
"""From here on the feature flag stream_queue cannot be disabled."""


def native_status(parts: "Parts") -> dict[str, Any] | None:
    """Return how many messages each level holds, and what is to become of the timeout manager."""
    native = parts.context.native_delays
    if native is None:
        return None
    from timeoutmgr.native.feature import native_feature
    from timeoutmgr.native.leftovers import advice, look

    counts = native_feature(parts.settings).levels(parts.settings).counts()
    found = look(parts.settings)
    return {
        "levels": {name: count for name, count in counts.items() if count},
        "delayed": sum(counts.values()),
        "timeout_manager": advice(parts.settings, found, falls_back=native.falls_back),
        "timeout_manager_pending": found.pending,
    }


def native_findings(parts: "Parts") -> Iterator[Finding]:
    """Yield what the doctor finds of the levels."""
    native = parts.context.native_delays
    if native is None:
        return
    from timeoutmgr.native.feature import native_feature
    from timeoutmgr.native.leftovers import advice, look

    levels = native_feature(parts.settings).levels(parts.settings)
    levels.check()
    shown = f"{levels.names.name}, {levels.queue_type} queues"
    yield Finding(level=Level.OK, check="delay levels", text=f"all are there ({shown})")
    yield from _alternate(levels.has_alternate(), levels.names.name, levels.names.level)
    with levels.session() as session:
        version = session.server_version
    if levels.queue_type == "quorum" and version < _ALWAYS_AT_LEAST_ONCE:
        yield Finding(
            level=Level.OK,
            check="at least once",
            text="RabbitMQ before 3.12 passes messages on at least once only with the feature flag "
            "stream_queue: see `rabbitmqctl list_feature_flags`",
        )
    found = look(parts.settings)
    waits = bool(found.pending) and parts.context.store is None
    yield Finding(
        level=Level.WARN if waits else Level.OK,
        check="timeout manager",
        text=advice(parts.settings, found, falls_back=native.falls_back),
    )


def _alternate(is_there: bool, name: str, level: str) -> Iterator[Finding]:
    from timeoutmgr.native.names import UNROUTABLE

    if is_there:
        yield Finding(
            level=Level.OK, check="unroutable", text=f"what has no queue goes to {UNROUTABLE}"
        )
        return
    stem = level.partition("delay")[0].replace(".", r"\.")
    yield Finding(
        level=Level.WARN,
        check="unroutable",
        text=f"the levels {name!r} have no alternate exchange: 32 messages without a queue stop a "
        "level for everybody",
        remedy=f"rabbitmqctl set_policy timeoutmgr-unroutable '^{stem}' "
        f"""'{{"alternate-exchange":"{UNROUTABLE}"}}' --apply-to exchanges""",
    )
