"""The dead letters of the endpoint's node: list them by class, and retry them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice

from timeoutmgr.contracts.audit import ChangedBy
from timeoutmgr.deadletter.queues import StoredCopyFilter, StoredCopyGroup, StoredCopyQueue
from timeoutmgr.deadletter.retry import RetriedDeadLetter, Retry, retry
from timeoutmgr.deadletter.service import DeadLetterService
from timeoutmgr.deadletter.stored_copy import NodeQueue, StoredCopy, class_name, class_number
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.endpoint.attempts import audited
from timeoutmgr.endpoint.audited_retries import selection_of
from timeoutmgr.errors import InvalidMessage
from timeoutmgr.web.source import PAGE

QUEUES = (NodeQueue.DEADLETTER, NodeQueue.DEADXACT)
"""The queues of a node that hold dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyForm:
    """The texts of a form that selects dead letters; without a class, it selects all."""

    queue: str = NodeQueue.DEADLETTER.value
    message_class: str = ""

    @property
    def filter(self) -> StoredCopyFilter:
        """The filter in the texts. Raises InvalidMessage."""
        if not self.message_class:
            return StoredCopyFilter()
        return StoredCopyFilter(message_class=class_number(self.message_class))


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyGroup:
    """Dead letters of one class in one queue, with their reasons."""

    queue: str
    name: str
    number: int
    count: int
    oldest: int
    reasons: Sequence[StoredCopyGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterView:
    """The dead letters of a node: their groups, and copies of the selected class."""

    node: str
    groups: Sequence[CopyGroup]
    copies: Sequence[StoredCopy]


def copy_form(given: Mapping[str, str]) -> CopyForm:
    """Return the selection in the *given* parameters. Raises InvalidMessage."""
    form = CopyForm(
        queue=given.get("queue") or NodeQueue.DEADLETTER.value,
        message_class=given.get("class", "").strip(),
    )
    if form.queue not in QUEUES:
        raise InvalidMessage(f"{form.queue[:40]!r} holds no dead letters of a node")
    _ = form.filter
    return form


class NodeDeadLetters:
    """Dead letters of the node, for the pages to read and change."""

    def __init__(self, parts: AssembledEndpoint) -> None:
        self._parts = parts

    @property
    def _service(self) -> DeadLetterService | None:
        found = self._parts.features.dead_letters
        return found if isinstance(found, DeadLetterService) else None

    def view(self, form: CopyForm) -> DeadLetterView | None:
        """Return the dead letters; None if the endpoint has no dead-letter queues."""
        service = self._service
        if service is None:
            return None
        manager = service.manager
        manager.store.check()
        groups = [each for kind in QUEUES for each in _groups(StoredCopyQueue(manager, kind))]
        chosen = StoredCopyQueue(manager, NodeQueue(form.queue))
        copies = chosen.peek(form.filter, limit=PAGE) if form.message_class else []
        return DeadLetterView(node=manager.node, groups=groups, copies=copies)

    def retry(
        self, form: CopyForm, limit: int | None, by: ChangedBy
    ) -> Sequence[RetriedDeadLetter]:
        """Send the selected dead letters to their destinations again; return the results."""
        service = self._service
        if service is None:
            return ()
        queue = StoredCopyQueue(service.manager, NodeQueue(form.queue))
        newest = queue.newest(form.filter)
        if newest is None:
            return ()
        # A message that fails again meanwhile is a newer copy: do not select it a second time.
        copies = queue.every(replace(form.filter, kept_before=newest + 1))
        transport = self._parts.settings.transport
        with audited(self._parts, "retry-dead-letters", by, selection_of(asdict(form))) as work:
            results = retry(transport, service, queue, islice(copies, limit))
            work.changed = sum(each.what is Retry.RETRIED for each in results)
        return results


def _groups(queue: StoredCopyQueue) -> list[CopyGroup]:
    found: dict[int, list[StoredCopyGroup]] = {}
    for group in queue.groups():
        found.setdefault(group.message_class, []).append(group)
    made = [
        CopyGroup(
            queue=str(queue.kind),
            name=class_name(number),
            number=number,
            count=sum(group.count for group in groups),
            oldest=min(group.oldest for group in groups),
            reasons=groups[:3],
        )
        for number, groups in found.items()
    ]
    return sorted(made, key=lambda group: -group.count)
