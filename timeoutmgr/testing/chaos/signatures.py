"""Who sent a message, and when: written on it as it leaves for one of certain queues.

Without it nobody could say whether the process that sent a message first was the one that crashed.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from timeoutmgr.contracts import SendResult, Transport, TransportSession
from timeoutmgr.message import Outgoing

SENT_BY: Final = "Chaos.SentBy"
SENT_AT: Final = "Chaos.SentAt"
"""Where it is only known to its sender: into delay levels a message goes before it is due."""


def signed(transport: Transport, queues: Collection[str], sender: str) -> Transport:
    """Return *transport*, which from now on writes *sender* on what goes to one of *queues*."""
    made: Any = transport  # the real one, and no wrapper: others look at what it is
    open_session = made.session
    made.session = lambda: _SigningSession(open_session(), queues, sender)
    return transport


class _SigningSession:
    def __init__(self, inner: TransportSession, queues: Collection[str], sender: str) -> None:
        self._inner = inner
        self._queues = queues
        self._sender = sender

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, outgoing: Sequence[Outgoing], **how: Any) -> list[SendResult]:
        return self._inner.send([self._sign(one) for one in outgoing], **how)

    def _sign(self, one: Outgoing) -> Outgoing:
        if one.destination not in self._queues:
            return one
        signature = {SENT_BY: self._sender}
        if one.via is not None:
            signature[SENT_AT] = str(time.time_ns() // 1_000)
        message = replace(one.message, headers={**one.message.headers, **signature})
        return replace(one, message=message)
