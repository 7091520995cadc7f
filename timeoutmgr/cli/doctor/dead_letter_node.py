"""What ``status`` and ``doctor`` say of the dead-letter queues of the endpoint's node."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from timeoutmgr.cli import output
from timeoutmgr.cli.findings import Finding, Level, no_file, ok

if TYPE_CHECKING:
    from timeoutmgr.assembly import Parts
    from timeoutmgr.deadletter.manager import QueueManager
    from timeoutmgr.deadletter.standing import Share, Standing

_NEARLY_FULL: Final = 0.8
_READ: Final = "look at them with `timeoutmgr deadletters list --groups`; retry or delete them"


def manager_of(parts: "Parts") -> "QueueManager | None":
    """Return the queue manager of the node, None where the endpoint has no such queues."""
    from timeoutmgr.deadletter.desk import DeadLetterDesk

    desk = parts.context.dead_letters
    return desk.manager if isinstance(desk, DeadLetterDesk) else None


def node_document(parts: "Parts") -> dict[str, Any] | None:
    """Return how the node stands, for ``status``."""
    from timeoutmgr.deadletter.standing import standing

    manager = manager_of(parts)
    if manager is None:
        return None
    manager.store.check()
    found = standing(manager)
    return {
        "node": manager.node,
        **{
            name: {"count": pile.count, "oldest": output.shown_time(pile.oldest)}
            for name, pile in (
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


def node_findings(parts: "Parts") -> Iterator[Finding]:
    """Yield what is doubtful about the node's queues, for ``doctor``."""
    from timeoutmgr.deadletter.feature import InstalledNode
    from timeoutmgr.deadletter.standing import standing

    manager = manager_of(parts)
    if manager is None:
        return
    if (finding := no_file(manager.store.database)) is not None:
        yield finding
        return
    InstalledNode(manager).check()
    found = standing(manager)
    where = manager.store.database.describe()
    yield ok("dead-letter queues", f"node {manager.node!r} is installed in {where}")
    yield _letters(found)
    for name, share in _shares(found).items():
        if share.part >= _NEARLY_FULL:
            yield _nearly_full(name, share)


def _letters(found: "Standing") -> Finding:
    dead = found.dead
    if not dead.count:
        return ok("dead letters", "there are none")
    return Finding(
        level=Level.WARN,
        check="dead letters",
        text=f"{dead.count} lie here, the oldest since {output.shown_time(dead.oldest)}",
        remedy=_READ,
    )


def _nearly_full(name: str, share: "Share") -> Finding:
    what = {
        "dead_letters": "the error queue gets what dies",
        "journals": "no copies are made",
        "node": "what is to be buried waits, and receivers stop",
    }[name]
    return Finding(
        level=Level.FAIL if share.part >= 1 else Level.WARN,
        check=f"quota of {name.replace('_', ' ')}",
        text=f"{share.used} of {share.quota} bytes are used; over it {what}",
        remedy=f"{_READ}, or raise the quota",
    )


def _shares(found: "Standing") -> "dict[str, Share]":
    return {
        "dead_letters": found.dead_letters_share,
        "journals": found.journal_share,
        "node": found.node_share,
    }
