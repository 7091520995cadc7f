"""List handlers: called once for all messages of their type in a batch.

A savepoint holds the effects of the call. If the call fails its effects are undone, and the handler
is called with each message alone, so that only a message that fails by itself is recovered.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from timeoutmgr.crashpoints import reach
from timeoutmgr.endpoint.handlers import (
    UNDOING_ALL,
    Body,
    HandledMessage,
    HandlerContext,
    HandlerStep,
    PreparedMessage,
    as_a_failure_of_its_message,
    call_handler,
)
from timeoutmgr.message.message import Outgoing, Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.telemetry import Operation
from timeoutmgr.transport.work import OUTAGES, Work

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

logger = logging.getLogger(__name__)


class BatchContext:
    """The context of a list of messages: their common session, and the context of each message.

    ``contexts`` has the order of the list. Send each message with the context of the message that
    caused it, ``context.contexts[0].send(...)``, so that its id does not depend on the neighbours.
    """

    def __init__(self, contexts: Sequence[HandlerContext]) -> None:
        self.contexts: Final = contexts

    @property
    def session(self) -> "Session":
        """An SQLAlchemy session inside the transaction that also settles all these messages.

        A rollback or commit of the session affects only the savepoint of the list. Raises
        RuntimeError in modes without a transaction.
        """
        return self.contexts[0].session


ListHandler: TypeAlias = Callable[[list[Any], BatchContext], None]
"""A plain function that gets all messages of its type in a batch."""
TypedListHandler: TypeAlias = Callable[[list[Body], BatchContext], None]
"""A function that gets objects of its class, as a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListHandlerStep(HandlerStep):
    """Step that handles messages one by one, and then messages of the types *lists* together."""

    lists: frozenset[str]

    def __call__(self, batch: Sequence[Received], work: Work) -> None:
        """Handle *batch*, then send the messages of its handlers."""
        alone = len(batch) == 1
        listed = _ListedMessages(self, work, alone=alone)
        handled = self.handle_each(listed.set_aside(batch, work), work, alone=alone)
        self.finish([*handled, *listed.handle()], work, alone=alone)


class _ListedMessages:
    """The messages of one batch whose handlers get lists."""

    def __init__(self, step: ListHandlerStep, work: Work, *, alone: bool) -> None:
        self._step = step
        self._work = work
        self._alone = alone
        self._waiting: dict[str, list[Received]] = {}
        self._handled: list[HandledMessage] = []

    def set_aside(self, batch: Sequence[Received], work: Work) -> Iterator[Received]:
        """Yield the other messages, each in its turn; handle the lists in the last turn.

        During a turn, the messages behind a slow call can be released.
        """
        for received in work.in_order(batch):
            kind = self._step.type_of(received.message)
            if kind in self._step.lists:
                self._waiting.setdefault(kind, []).append(received)
            else:
                yield received
            if received is batch[-1]:
                self.handle()

    def handle(self) -> Sequence[HandledMessage]:
        """Handle the pending lists; return all messages that were handled in lists."""
        waiting, self._waiting = self._waiting, {}
        for received in waiting.values():
            self._handle(received)
        return self._handled

    def _handle(self, received: Sequence[Received]) -> None:
        prepared = list(self._prepared(received))
        if not prepared:
            return
        messages = [message for message, _ in prepared]
        try:
            outgoing = self._call([each for _, each in prepared])
        except Exception as error:
            if self._alone or (self._work.is_atomic and isinstance(error, UNDOING_ALL)):
                raise
            self._recover(messages, error)
        else:
            self._handled += map(HandledMessage, messages, outgoing)

    def _prepared(self, received: Iterable[Received]) -> Iterator[tuple[Received, PreparedMessage]]:
        """Yield the messages that fit their handlers; fail each other message alone."""
        for each in received:
            try:
                prepared = self._step.prepare(each, self._work)
            except Exception as error:
                if self._alone or (self._work.is_atomic and isinstance(error, UNDOING_ALL)):
                    raise
                self._work.fail(each, error)
            else:
                if prepared is not None:
                    yield each, prepared

    def _call(self, prepared: Sequence[PreparedMessage]) -> Sequence[Sequence[Outgoing]]:
        """Call the handlers once; return the sends of each message. Undo the call if it fails."""
        first, *others = contexts = [each.context for each in prepared]
        for other in others:
            other.share_session(first)
        try:
            try:
                queue = self._step.queue
                with self._step.during(
                    Operation.HANDLER, ((queue, each.message) for each in contexts)
                ):
                    for handler in prepared[0].handlers:
                        bodies = [each.body for each in prepared]
                        call_handler(handler, bodies, BatchContext(contexts))
                first.end()  # before the sends are collected: a later send would be lost
                sent = [other.collected() for other in others]
                outgoing = [first.keep(), *sent]
                reach("handler.kept")
            except BaseException as error:
                first.end()
                failure = as_a_failure_of_its_message(error, self._work, first)
                if failure is error:
                    raise
                raise failure from error
        except Exception as error:
            first.undo(with_all=self._alone or isinstance(error, UNDOING_ALL))
            raise
        return outgoing

    def _recover(self, received: Sequence[Received], error: Exception) -> None:
        """Call the handlers with each message alone, unless that would fail in the same way."""
        if len(received) == 1 or isinstance(error, OUTAGES):
            for each in received:
                self._work.fail(each, error)
            return
        logger.warning(
            "endpoint %s handles each of %d messages alone, because a handler of their list "
            "failed: %s",
            self._step.composer.endpoint,
            len(received),
            on_one_line(error),
            extra={"event": "list_failed", "endpoint": self._step.composer.endpoint},
        )
        self._step.telemetry.count("lists_failed")
        for each in received:
            self._handle([each])
