"""The error queue: a failed message goes there whole, or as completely as the queue accepts."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from timeoutmgr.contracts import SendResult
from timeoutmgr.errors import InvalidMessage, text_of
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.error_copy import bare_error_copy, error_copy, minimal_error_copy

logger = logging.getLogger(__name__)

SendAnswer: TypeAlias = SendResult | InvalidMessage
"""The result of sending one message; InvalidMessage if the transport cannot carry it."""
SendCopies: TypeAlias = Callable[[Sequence[Outgoing]], list[SendAnswer]]


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message, the *error* that it failed with, and the *queue* where a retry sends it."""

    message: Message
    error: BaseException
    queue: str


@dataclass(frozen=True, slots=True)
class ErrorQueue:
    """The error queue of *endpoint*, at the instant *at*."""

    name: str
    endpoint: str
    at: Micros

    def move(self, failed: Sequence[FailedMessage], send: SendCopies) -> list[SendAnswer]:
        """Copy each message into the queue by *send*; return the result of each copy.

        Whole copies are sent first, all at once. If a whole copy is refused, a minimal copy
        follows; if a message cannot be sent as it was received, a bare copy follows.
        """
        answers = send([self._outgoing(self._whole(one)) for one in failed])
        for place, one in enumerate(failed):
            if _is_refused(answers[place]):
                answers[place] = self._move_smaller(one, answers[place], send)
        return answers

    def _move_smaller(
        self, one: FailedMessage, refusal: SendAnswer, send: SendCopies
    ) -> SendAnswer:
        reason = text_of(one.error)
        minimal = minimal_error_copy(one.message, queue=one.queue, reason=reason)
        [answer] = send([self._outgoing(minimal)])
        if isinstance(answer, InvalidMessage):
            # Without this copy the message would be lost, or come back for ever.
            bare = bare_error_copy(one.message, queue=one.queue, reason=reason)
            [answer] = send([self._outgoing(bare)])
        if answer is SendResult.CONFIRMED:
            logger.warning(
                "error queue %.80r accepts only a smaller copy of message %.80r: %s",
                self.name,
                one.message.id,
                on_one_line(refusal),
                extra=message_fields("error_copy_cut", one.message, self.name)
                | {"endpoint": self.endpoint},
            )
        return answer

    def _whole(self, one: FailedMessage) -> Message:
        return error_copy(
            one.message, one.error, queue=one.queue, endpoint=self.endpoint, at=self.at
        )

    def _outgoing(self, copy: Message) -> Outgoing:
        return Outgoing(self.name, copy)


def message_fields(event: str, message: Message, destination: str) -> dict[str, str]:
    """Return the log fields of *event*, shortened: other programs choose ids and queues."""
    return {"event": event, "message_id": message.id[:80], "destination": destination[:80]}


def _is_refused(answer: SendAnswer) -> bool:
    return answer is SendResult.REFUSED or isinstance(answer, InvalidMessage)
