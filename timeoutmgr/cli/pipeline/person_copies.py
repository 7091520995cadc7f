"""The copies of a person's messages in the error queue and in dead-letter queues, for ``erase``."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from timeoutmgr.database import Database, as_database
from timeoutmgr.deadletter.queues import StoredCopyQueue
from timeoutmgr.deadletter.service import DeadLetterService
from timeoutmgr.deadletter.stored_copy import NodeQueue, StoredCopy
from timeoutmgr.endpoint.assembly import AssembledEndpoint
from timeoutmgr.message import headers
from timeoutmgr.message.message import Message, Received
from timeoutmgr.message.routes import id_of_timeout, is_delayed_retry, manager_endpoint, timeout_id
from timeoutmgr.pipeline.lake_options import EraseOptions
from timeoutmgr.pipeline.writers.erasure import Key
from timeoutmgr.transport import error_queue_retry as errors


@dataclass(frozen=True, slots=True)
class PersonCopies:
    """The copies that *options* select in the queues of the endpoint with *parts*.

    Queues are the error queue, the node's own dead-letter queues and journal, and the copies that
    await their final acknowledgement, since a sweep turns them into dead letters.
    """

    parts: AssembledEndpoint
    options: EraseOptions

    @property
    def databases(self) -> list[Database]:
        """The databases that may contain copies."""
        service, shared = self.parts.features.dead_letters, self.parts.settings.transport.database
        found = [] if shared is None else [as_database(shared)]
        if isinstance(service, DeadLetterService):
            found.append(service.manager.store.database)
        return found

    def count(self, keys: set[Key], *, delete: bool = False) -> dict[str, int]:
        """Count the copies, including copies of the timeouts *keys*; with *delete*, delete them."""
        endpoints = {self.parts.settings.name, *(endpoint for endpoint, _id in keys)}
        ids = {*self.options.ids, *(id_ for _endpoint, id_ in keys)}
        which = _OfPerson(options=self.options, erased=ids, endpoints=endpoints)
        found = self._stored(which)
        stored = sum(queue.delete(copies) if delete else len(copies) for queue, copies in found)
        return {"error copies": self._error_copies(which, delete), "stored copies": stored}

    def _error_copies(self, which: "_OfPerson", delete: bool) -> int:
        given = self.parts.settings
        with closing(errors.browse(given.transport, given.error_queue, which)) as found:
            count = sum(1 for _copy in found)
        if not count or not delete:
            return count
        queue = errors.EndpointErrorQueue(
            name=given.error_queue, endpoint=given.name, limits=given.limits
        )
        request = errors.RetryRequest(which=which, delete=True)
        done = errors.retry(given.transport, queue, request)
        return sum(one.result is errors.RetryResult.DELETED for one in done)

    def _stored(self, which: "_OfPerson") -> Iterator[tuple[StoredCopyQueue, list[StoredCopy]]]:
        service = self.parts.features.dead_letters
        if isinstance(service, DeadLetterService):
            for kind in (None, *NodeQueue):  # in the order in which a sweep moves copies
                queue = StoredCopyQueue(service.manager, kind)
                copies = queue.every()
                yield queue, [one for one in copies if which.has(one.message, one.destination)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfPerson(errors.FailureFilter):
    """Selects copies by *options*, or by ids of *erased* timeouts of *endpoints*."""

    options: EraseOptions
    erased: set[str]
    endpoints: set[str]

    def matches(self, received: Received) -> bool:
        return self.has(received.message, received.message.headers.get(headers.FAILED_QUEUE))

    def has(self, message: Message, queue: str | None) -> bool:
        given, options = message.headers, self.options
        return (
            given.get(headers.SAGA_ID) in options.saga_ids
            or queue in options.destinations
            or any(given.get(name) == value for name, value in options.headers.items())
            or not self.erased.isdisjoint(self._ids(message, queue))
        )

    def _ids(self, message: Message, queue: str | None) -> set[str]:
        """Return the id of *message* and the ids that its timeouts may have.

        Another endpoint may have a timeout with the same message id: the timeout's id tells them
        apart, otherwise the message's sender and the endpoint that failed in *queue*, if known. A
        delayed retry has its own id, from the endpoint that kept it; its first timeout has another.
        """
        given = message.headers
        related = given.get(headers.RELATED_TO_TIMEOUT)
        named = {message.id, related or message.id}
        if related is None or is_delayed_retry(given):
            own = {given.get(headers.ORIGINATING_ENDPOINT, ""), manager_endpoint(queue or "")}
            own |= {one for one in self.endpoints if id_of_timeout(one, message) == related}
            for one in own - {""} or self.endpoints:
                named |= {timeout_id(one, message.id), id_of_timeout(one, message)}
        return named
