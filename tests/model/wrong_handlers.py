"""Pumps and steps of handlers with one wrong order; each makes a mutant of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from timeoutmgr.endpoint.handler_session import WorkOfHandler
from timeoutmgr.endpoint.handlers import HandledMessage, HandlerStep, PreparedMessage
from timeoutmgr.errors import TransactionLost
from timeoutmgr.message import headers
from timeoutmgr.message.message import Received
from timeoutmgr.transport.batch_progress import BatchProgress
from timeoutmgr.transport.pump import ConsumedQueue, Pump
from timeoutmgr.transport.work import Work

Failed = Sequence[tuple[Received, Exception]]


class AcksNotBegun(Pump):
    """Acknowledges a whole batch, though its time was over before the last message."""

    def _attempt(self, progress: BatchProgress, opened: ConsumedQueue) -> Failed:
        with Work(opened.session, opened.receiver, self._around.mode, progress) as work:
            self._what.step(progress.batch, work)
            progress.close()
            work.ack(progress.batch)
        return work.failed


class AcksBeforeEffects(Pump):
    """Acknowledges a batch, and then has it handled."""

    def _attempt(self, progress: BatchProgress, opened: ConsumedQueue) -> Failed:
        opened.receiver.ack(progress.batch)
        with Work(opened.session, opened.receiver, self._around.mode, progress) as work:
            self._what.step(progress.batch, work)
            progress.close()
        return work.failed


class AcksFailed(Pump):
    """Acknowledges failed messages together with their neighbours."""

    def _attempt(self, progress: BatchProgress, opened: ConsumedQueue) -> Failed:
        with Work(opened.session, opened.receiver, self._around.mode, progress) as work:
            self._what.step(progress.batch, work)
            progress.close()
            opened.receiver.ack(progress.begun, transaction=work.transaction)
        return work.failed


class RepeatsNeighbours(Pump):
    """Commits the effects of a batch with a failed message, and handles all of it again."""

    def _attempt(self, progress: BatchProgress, opened: ConsumedQueue) -> Failed:
        with Work(opened.session, opened.receiver, self._around.mode, progress) as work:
            self._what.step(progress.batch, work)
            progress.close()
            if work.failed:
                work.failed = [(each, work.failed[0][1]) for each in progress.begun]
            work.ack(progress.begun)
        return work.failed


class HandlesGivenBack(Pump):
    """Gives messages back, and handles them as well."""

    def give_back(self) -> None:
        """Release the waiting messages, and leave them in the batch."""
        if self._progress is not None:
            progress, receiver = self._progress
            receiver.release(progress.waiting)


class KeepsFailedEffects(HandlerStep):
    """Does not undo a failed handler, as if its message were alone in the transaction."""

    def _handle(self, received: Received, work: Work, *, alone: bool) -> HandledMessage | None:
        return super()._handle(received, work, alone=True)


class NewIdPerHandling(HandlerStep):
    """Sends with new ids, as it does in a transaction."""

    def prepare(self, received: Received, work: WorkOfHandler) -> PreparedMessage | None:
        """Return *received* without the time of sending, from which repeatable ids are made."""
        known = received.message.headers.items()
        kept = {name: value for name, value in known if name != headers.TIME_SENT}
        message = replace(received.message, headers=kept)
        return super().prepare(replace(received, message=message), work)


class IgnoresLostTransaction(HandlerStep):
    """Takes a message for handled whose savepoint could not be released."""

    def _handle(self, received: Received, work: Work, *, alone: bool) -> HandledMessage | None:
        try:
            return super()._handle(received, work, alone=alone)
        except TransactionLost:
            return None
