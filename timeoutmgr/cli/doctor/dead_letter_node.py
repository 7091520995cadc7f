"""The dead-letter queues of the endpoint's node, for ``status`` and ``doctor``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.cli import output
from timeoutmgr.cli.doctor.findings import no_file, ok, warn
from timeoutmgr.contracts.reports import Finding, Level

if TYPE_CHECKING:
    from timeoutmgr.deadletter.manager import QueueManager
    from timeoutmgr.deadletter.node_status import NodeStatus, QuotaShare
    from timeoutmgr.endpoint.assembly import AssembledEndpoint

_NEARLY_FULL: Final = 0.8
_READ: Final = "look at them with `timeoutmgr deadletters list --groups`; retry or delete them"


def manager_of(parts: "AssembledEndpoint") -> "QueueManager | None":
    """Return the queue manager of the node; None if the endpoint has no dead-letter queues."""
    from timeoutmgr.deadletter.service import DeadLetterService

    service = parts.features.dead_letters
    return service.manager if isinstance(service, DeadLetterService) else None


def node_document(parts: "AssembledEndpoint") -> dict[str, Any] | None:
    """Return the state of the node, for ``status``."""
    from timeoutmgr.deadletter.node_status import read_node_status

    manager = manager_of(parts)
    if manager is None:
        return None
    manager.store.check()
    found = read_node_status(manager)
    return {
        "node": manager.node,
        **{
            name: {"count": queue.count, "oldest": output.shown_time(queue.oldest)}
            for name, queue in (
                ("deadletter", found.deadletter),
                ("deadxact", found.deadxact),
                ("of_applications", found.own),
            )
        },
        "awaiting": found.awaiting,
        "journal": found.journal,
        "bytes": {
            name: {"used": share.used, "quota": share.quota}
            for name, share in _shares(found).items()
        },
    }


def node_findings(parts: "AssembledEndpoint") -> Iterator[Finding]:
    """Yield findings about the node's queues, for ``doctor``."""
    from timeoutmgr.deadletter.feature import InstalledNode
    from timeoutmgr.deadletter.node_status import read_node_status

    manager = manager_of(parts)
    if manager is None:
        return
    if (finding := no_file(manager.store.database)) is not None:
        yield finding
        return
    InstalledNode(manager).check()
    found = read_node_status(manager)
    where = manager.store.database.describe()
    yield ok("dead-letter queues", f"node {manager.node!r} is installed in {where}")
    yield _letters(found)
    for name, share in _shares(found).items():
        if share.part >= _NEARLY_FULL:
            yield _nearly_full(name, share)


def _letters(found: "NodeStatus") -> Finding:
    dead = found.dead
    if not dead.count:
        return ok("dead letters", "there are none")
    return warn(
        "dead letters",
        f"{dead.count} dead letters, the oldest since {output.shown_time(dead.oldest)}",
        _READ,
    )


def _nearly_full(name: str, share: "QuotaShare") -> Finding:
    what = {
        "dead_letters": "failed messages go to the error queue",
        "journals": "journals get no more entries",
        "node": "messages that failed wait, and receivers stop",
    }[name]
    return Finding(
        level=Level.FAIL if share.part >= 1 else Level.WARN,
        check=f"quota of {name.replace('_', ' ')}",
        text=f"{share.used} of {share.quota} bytes are used; over it {what}",
        remedy=f"{_READ}, or raise the quota",
    )


def _shares(found: "NodeStatus") -> "dict[str, QuotaShare]":
    return {
        "dead_letters": found.dead_letters_share,
        "journals": found.journal_share,
        "node": found.node_share,
    }
