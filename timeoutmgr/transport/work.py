"""The unit of work of a step: its sends and acknowledgements, undone together if the step fails."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from timeoutmgr.contracts import (
    Answered,
    Receiver,
    Sending,
    SendResult,
    StartsSending,
    TellsTime,
    Transaction,
    TransactionMode,
    TransportSession,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import (
    DeliveryUnknown,
    HandlerStopped,
    InvalidMessage,
    StorageUnavailable,
    TransportUnavailable,
    Unroutable,
)
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Outgoing, Received
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.transport.batch_progress import BatchProgress
from timeoutmgr.transport.error_queue import SendAnswer, message_fields

logger = logging.getLogger(__name__)

# --- A batch in sub-batches of limited size; each is one step and one transaction -----------------

Item = TypeVar("Item")

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes of bodies in one step. Several copies (rows, parameters, frames of the database)
exist until the commit: a hundred bodies of the largest size would take gigabytes, for no speed."""
LINGER: Final = 0.002
"""Seconds without another message after which a batch is handled as it is."""
FEW: Final = 8
"""Smallest batch that is worth waiting for: a smaller one saves little, and would be late."""


def in_sub_batches(batch: Sequence[Received], most: int) -> Iterator[Sequence[Received]]:
    """Yield *batch* in its order, in sub-batches with at most *most* bytes of bodies.

    A larger message is a sub-batch of its own.
    """
    return sub_batches(batch, most, lambda received: len(received.message.body))


def sub_batches(
    items: Sequence[Item], most: int, size_of: Callable[[Item], int]
) -> Iterator[Sequence[Item]]:
    """Yield *items* in their order, in parts of at most *most* bytes by *size_of*."""
    sub_batch: list[Item] = []
    room = most
    for item in items:
        size = size_of(item)
        if sub_batch and size > room:
            yield sub_batch
            sub_batch, room = [], most
        sub_batch.append(item)
        room -= size
    if sub_batch:
        yield sub_batch


def parts(items: list[Item], most: int) -> Iterator[list[Item]]:
    """Yield *items* in their order, in parts of at most *most*."""
    for start in range(0, len(items), most):
        yield items[start : start + most]


OUTAGES: Final = (StorageUnavailable, TransportUnavailable, DeliveryUnknown, HandlerStopped)
"""Errors that are not the message's fault: it stays in its queue until the outage is over, or the
endpoint runs again."""
ATOMIC = frozenset({TransactionMode.SENDS_ATOMIC_WITH_RECEIVE, TransactionMode.TRANSACTION_SCOPE})


class Step(Protocol):
    """Handles a batch: returns when every message is dealt with; raises to get the batch again."""

    def __call__(self, batch: Sequence[Received], work: "Work") -> None:
        """Deal with every message of *batch*."""
        ...


class IsolatedSends(Protocol):
    """Sends at once; a send joins only the transaction that queue and store share, if any."""

    @property
    def scope(self) -> Transaction | None:
        """The shared transaction in ``transaction_scope``; otherwise None."""
        ...

    def send_isolated(self, outgoing: Sequence[Outgoing]) -> list[SendResult]:
        """Send all messages; return the result of each, in order."""
        ...

    def start_isolated(self, outgoing: Sequence[Outgoing]) -> Sending:
        """Send all messages; wait for the broker when the results are asked for."""
        ...

    def notify(self, outgoing: Sequence[Outgoing], *, isolated: bool) -> None:
        """Send notifications; nothing here depends on their success."""
        ...


class Consumer:
    """The consumer of a queue, and *since* when its batch's messages could be delivered.

    A receive that finds fewer messages than requested has emptied the queue: all later messages
    were delivered after it. *number* distinguishes the consumer from others.
    """

    __slots__ = ("_emptied", "number", "since")

    def __init__(self, number: int, monotonic: float) -> None:
        self.number: Final = number
        self.since = monotonic
        self._emptied = monotonic

    def received(self, batch: Sequence[Received], limit: int, monotonic: float) -> None:
        """Note a receive of at most *limit* messages that returned *batch*."""
        self.since = self._emptied
        # Large bodies may have ended the receive: then more messages are waiting.
        if len(batch) == limit:
            return
        if sum(len(one.message.body) for one in batch) < BATCH_BYTES // 8:
            self._emptied = monotonic


class Work:
    """One batch's unit of work; the pump enters it, and passes it to the step.

    In an atomic mode, the transaction is opened at its first use, at the latest to acknowledge: on
    SQLite it blocks all other writers, and a handler may take its time.
    """

    def __init__(
        self,
        session: TransportSession,
        receiver: Receiver,
        mode: TransactionMode,
        progress: BatchProgress | None = None,
        consumer: Consumer | None = None,
    ) -> None:
        self._session = session
        self.consumer: Final = consumer
        """The consumer of the batch; None if unknown."""
        self._progress = progress
        self._receiver = receiver
        self._mode = mode
        self._stack = ExitStack()
        self._transaction: Transaction | None = None
        self._after_commit: list[Callable[[], None]] = []
        self.failed: list[tuple[Received, Exception]] = []
        """Messages that are recovered, each according to its error, once the rest is settled."""

    def __enter__(self) -> Self:
        self._stack.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._stack.__exit__(kind, error, trace)
        except (StorageUnavailable, TransportUnavailable):
            if error is None:  # the commit was sent, and may have happened
                self._follow()
            raise
        if error is None:
            reach("work.committed")
            self._follow()

    @property
    def is_atomic(self) -> bool:
        """Whether sends are undone with the receive."""
        return self._mode in ATOMIC

    @property
    def is_settled(self) -> bool:
        """Whether the messages were acknowledged when they were received."""
        return self._mode is TransactionMode.NONE

    @property
    def scope(self) -> Transaction | None:
        """The shared transaction of queue and store in ``transaction_scope``; otherwise None."""
        return self.transaction if self._mode is TransactionMode.TRANSACTION_SCOPE else None

    @property
    def transaction(self) -> Transaction | None:
        """The transaction that receiving and sending share in the atomic modes; otherwise None."""
        if self._transaction is None and self._mode in ATOMIC:
            self._transaction = self._stack.enter_context(self._session.transaction())
        return self._transaction

    def now(self) -> Micros | None:
        """Return the time of the clock beside the queues; None if only the host's clock counts."""
        if not isinstance(self._session, TellsTime):
            return None
        return self._session.now(transaction=self._transaction)

    def send(self, outgoing: Sequence[Outgoing]) -> list[SendResult]:
        """Send the messages of handlers; undone with the receive if the mode supports it."""
        if outgoing:
            reach("handler.returned")
        results = self.try_send(outgoing)
        if outgoing:
            reach("handler.sent")
        return results

    def send_isolated(self, outgoing: Sequence[Outgoing]) -> list[SendResult]:
        """Send now and return the results; join only ``transaction_scope``.

        A dispatcher must not remove a row while an undone receive could still undo its message, so
        outside ``transaction_scope`` its sends are independent.
        """
        return self._session.send(outgoing, transaction=self.scope) if outgoing else []

    def start_isolated(self, outgoing: Sequence[Outgoing]) -> Sending:
        """Send now, as ``send_isolated`` does; the call for the results waits for the broker.

        If there is nothing to wait for, the results are known already.
        """
        if self.scope is None and outgoing and isinstance(self._session, StartsSending):
            return self._session.start_sending(outgoing)
        return Answered(self.send_isolated(outgoing))

    def try_send(self, outgoing: Sequence[Outgoing]) -> list[SendResult]:
        """Send in the receive's transaction, if the mode has one, and return the results."""
        if not outgoing:
            return []
        return self._session.send(outgoing, transaction=self.transaction)

    def notify(self, outgoing: Sequence[Outgoing], *, isolated: bool = False) -> None:
        """Send notifications; nothing here depends on them, not even on whether the queue exists.

        In the receive's transaction if the mode has one, or *isolated* as ``send_isolated`` does.
        """
        notify_best_effort(self.send_isolated if isolated else self.try_send, outgoing)

    def in_order(self, batch: Sequence[Received]) -> Iterable[Received]:
        """Return the messages of *batch* for a step that handles them one by one.

        The iteration may end early. Messages that were not yielded are not settled.
        """
        return batch if self._progress is None else self._progress

    def fail(self, received: Received, error: Exception) -> None:
        """Recover *received* (retry or move it) once the rest of the batch is settled.

        For a step that has dealt with the rest, and has left no effect of *received*: raising would
        repeat the whole batch.
        """
        self.failed.append((received, error))

    def ack(self, batch: Sequence[Received]) -> None:
        """Settle the messages of *batch* that did not fail; the pump calls this last."""
        tags = {received.tag for received, _ in self.failed}
        settled = [received for received in batch if received.tag not in tags] if tags else batch
        if settled:
            self._receiver.ack(settled, transaction=self.transaction)

    def after_commit(self, action: Callable[[], None]) -> None:
        """Call *action* once everything is committed; never after a rollback.

        It is also called if the commit's answer is lost: the message may not be delivered again, so
        no other process would do it. So *action* must be harmless if nothing was committed.
        """
        self._after_commit.append(action)

    def _follow(self) -> None:
        # All is committed: a failure here must not repeat the work or move it to the error queue.
        for action in self._after_commit:
            try:
                action()
            except Exception:
                logger.exception(
                    "after-commit callback failed (transaction is committed)",
                    extra={"event": "after_commit_failed"},
                )


def send_each(outgoing: Sequence[Outgoing], work: IsolatedSends) -> list[SendAnswer]:
    """Send all messages together; a message that cannot be sent does not hold up the others."""
    try:
        return list(work.send_isolated(outgoing))
    except InvalidMessage as error:
        return _send_apart(outgoing, error, work)


def _send_apart(
    outgoing: Sequence[Outgoing], error: InvalidMessage, work: IsolatedSends
) -> list[SendAnswer]:
    """Send each message alone: *error*, raised before any send, does not name a message."""
    if len(outgoing) == 1:
        return [error]
    return [result for one in outgoing for result in send_each([one], work)]


def start_each(outgoing: Sequence[Outgoing], work: IsolatedSends) -> Callable[[], list[SendAnswer]]:
    """Send as ``send_each`` does; return a function that waits for the results."""
    try:
        sending = work.start_isolated(outgoing)
    except InvalidMessage as error:
        results = _send_apart(outgoing, error, work)
        return lambda: results
    return lambda: list(sending.results())


def notify_best_effort(
    send: Callable[[Sequence[Outgoing]], list[SendResult]], outgoing: Sequence[Outgoing]
) -> None:
    """Send notifications; log a failure, and do not raise."""
    try:
        results = send(outgoing)
    except InvalidMessage as error:
        logger.warning(
            "pump could not send an acknowledgement: %s",
            on_one_line(error),
            extra={"event": "acknowledgement_refused"},
        )
        return
    for sent, result in zip(outgoing, results, strict=True):
        if result is not SendResult.CONFIRMED:
            logger.warning(
                "queue %.80r did not accept an acknowledgement (%s): message %.80r",
                sent.destination,
                result.value,
                sent.message.id,
                extra=message_fields(
                    "acknowledgement_not_accepted", sent.message, sent.destination
                ),
            )


def require_confirmed(outgoing: Sequence[Outgoing], results: Sequence[SendResult]) -> None:
    """Raise for the first message for which the broker did not take responsibility."""
    for sent, result in zip(outgoing, results, strict=True):
        if result is SendResult.UNROUTABLE:
            raise Unroutable(sent.destination)
        if result is SendResult.REFUSED:
            raise TransportUnavailable(
                f"the broker refused message {sent.message.id!r:.80} for {sent.destination!r:.80}; "
                "its queue may be full, an alarm on, or an exchange missing or not for this user: "
                "the log has the broker's reason, and `timeoutmgr install` declares exchanges"
            )
        if result is SendResult.UNKNOWN:
            raise DeliveryUnknown(
                f"no confirm came for message {sent.message.id!r:.80} to {sent.destination!r:.80}; "
                "it may have been taken, so send it again only under the same message id"
            )
