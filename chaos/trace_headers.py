"""Trace headers: sender and send time of each message for a queue of the run.

They show the judge whether the first sender of a repeated message crashed.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from sqlalchemy import Insert, literal
from sqlalchemy.sql import FromClause

from chaos.foreign_messages import with_traces
from timeoutmgr.contracts import Sending, SendResult, StartsSending, Transport, TransportSession
from timeoutmgr.database.row_moves import KeepsRows, MessageRows
from timeoutmgr.message.foreign import Route
from timeoutmgr.message.message import Outgoing

SENT_BY: Final = "Chaos.SentBy"
SENT_AT: Final = "Chaos.SentAt"
"""For delay levels only: their messages are sent before they are due."""

_OPENS_SESSIONS: Final = ("session", "session_of_batches")


def signed(transport: Transport, queues: Collection[str], sender: str) -> Transport:
    """Return *transport*; it adds *sender* as a header to each message for *queues*."""
    made: Any = transport  # the transport itself, no wrapper: other code asks for its type
    for name in _OPENS_SESSIONS:
        if hasattr(made, name):
            setattr(made, name, _signing(getattr(made, name), queues, sender))
    if isinstance(transport, KeepsRows):
        rows = transport.message_rows()
        made.message_rows = lambda: None if rows is None else _SigningRows(rows, sender)
    return transport


def _signing(
    open_session: Callable[..., TransportSession], queues: Collection[str], sender: str
) -> Callable[..., TransportSession]:
    def opened(*how: Any) -> TransportSession:
        # Cast: the wrapper passes all other calls to the inner session.
        return cast(TransportSession, _SigningSession(open_session(*how), queues, sender))

    return opened


class _SigningRows:
    """Adds headers to messages that a database moves itself, all for queues of the run."""

    def __init__(self, inner: MessageRows, sender: str) -> None:
        self._inner = inner
        self._sender = sender

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def insert(self, messages: FromClause, added: Mapping[str, Any], *rest: Any) -> Insert:
        signature = {SENT_BY: literal(self._sender)}
        return self._inner.insert(messages, {**added, **signature}, *rest)


class _SigningSession:
    def __init__(self, inner: TransportSession, queues: Collection[str], sender: str) -> None:
        self._inner = inner
        self._queues = queues
        self._sender = sender
        # Not as methods of this class: callers check whether a session has them.
        own, given = vars(type(self)), (name for name in dir(inner) if name[0] != "_")
        vars(self).update({name: getattr(inner, name) for name in given if name not in own})
        if isinstance(inner, StartsSending):
            vars(self)["start_sending"] = self._signing(inner.start_sending)

    def _signing(self, start: Callable[..., Sending]) -> Callable[[Sequence[Outgoing]], Sending]:
        return lambda outgoing: start([self._sign(one) for one in outgoing])

    def send(self, outgoing: Sequence[Outgoing], **how: Any) -> list[SendResult]:
        return self._inner.send([self._sign(one) for one in outgoing], **how)

    def _sign(self, one: Outgoing) -> Outgoing:
        signature = {SENT_BY: self._sender}
        if isinstance(one.via, Route):
            return with_traces(one, signature)
        if one.destination not in self._queues:
            return one
        if one.via is not None:
            signature[SENT_AT] = str(time.time_ns() // 1_000)
        message = replace(one.message, headers={**one.message.headers, **signature})
        return replace(one, message=message)
