"""An endpoint's queues in a database, and other programs' destinations on a separate broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from timeoutmgr.contracts import (
    Answered,
    BearsMarkers,
    Sending,
    SendResult,
    StartsSending,
    Transaction,
    Transport,
    TransportSession,
)
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import InvalidMessage, TransportUnavailable
from timeoutmgr.message.foreign import Route
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.resilience.after_fork import cached_property
from timeoutmgr.transport.sql.session import SqlSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SplitSending:
    """Messages on their way to two places; *order* says of each whether it goes to the broker."""

    order: Sequence[bool]
    here: Sequence[SendResult]
    elsewhere: Sending

    def results(self) -> list[SendResult]:
        """Wait for the broker, and return the results in the order of the messages."""
        here, elsewhere = iter(self.here), iter(self.elsewhere.results())
        return [next(elsewhere if is_routed else here) for is_routed in self.order]


@dataclass(frozen=True, kw_only=True)
class SplitSession(SqlSession):
    """A session whose messages with a route go to the broker of *destinations*.

    The broker takes part in no transaction. It also bears the endpoint's marker: otherwise two
    brokers could take each other's messages out of one store.
    """

    destinations: Transport
    _open: ExitStack = field(default_factory=ExitStack)

    def send(
        self, outgoing: Sequence[Outgoing], *, transaction: Transaction | None = None
    ) -> list[SendResult]:
        """Put messages into queues, and send those with a route to the broker."""
        return self._start(outgoing, transaction, self._start_there).results()

    def start_sending(self, outgoing: Sequence[Outgoing]) -> Sending:
        """Send; the call for the results waits for the broker.

        If the broker is away, the results of its messages are unknown: they are tried again, and do
        not delay the messages for our queues.
        """
        return self._start(outgoing, None, self._try_there)

    def missing_destinations(self, names: Collection[str]) -> list[str]:
        """Return nothing: the queue may be on the broker, where a dispatch declares it."""
        return []

    def borne_marker(self, endpoint: str, expected: str | None) -> str | None:
        """Return the marker that the broker bears for *endpoint*, or None."""
        bearer = self._bearer
        return None if bearer is None else bearer.borne_marker(endpoint, expected)

    def bear_marker(self, endpoint: str, word: str, store: str) -> None:
        """Mark *endpoint* on the broker; another marker is overwritten."""
        if self._bearer is not None:
            self._bearer.bear_marker(endpoint, word, store)

    def drop_marker(self, endpoint: str, expected: str | None) -> None:
        """Remove the marker of *endpoint* from the broker."""
        if self._bearer is not None:
            self._bearer.drop_marker(endpoint, expected)

    def close(self) -> None:
        """Close the connection to the broker; closing twice is fine."""
        self._open.close()

    @cached_property
    def _there(self) -> TransportSession:
        session = self.destinations.session()
        self._open.callback(session.close)
        return session

    @property
    def _bearer(self) -> BearsMarkers | None:
        there: Any = self._there
        return there if isinstance(there, BearsMarkers) else None

    def _start(
        self,
        outgoing: Sequence[Outgoing],
        transaction: Transaction | None,
        start_there: Callable[[Sequence[Outgoing]], Sending],
    ) -> Sending:
        order = [isinstance(one.via, Route) for one in outgoing]
        routed = [one for one in outgoing if isinstance(one.via, Route)]
        others = [one for one in outgoing if not isinstance(one.via, Route)]
        # The broker first: if it refuses a message up front, our queues have nothing either.
        elsewhere = start_there(routed) if routed else Answered([])
        if routed:
            reach("split.sent_there")
        here = self._send_here(others, transaction, is_alone=not routed)
        return SplitSending(order, here, elsewhere)

    def _send_here(
        self, outgoing: Sequence[Outgoing], transaction: Transaction | None, *, is_alone: bool
    ) -> list[SendResult]:
        if not outgoing:
            return []
        try:
            return super().send(outgoing, transaction=transaction)
        except InvalidMessage:
            if is_alone:
                raise
        # The caller would send all again, including messages that the broker already has.
        return [self._send_one_here(one, transaction) for one in outgoing]

    def _send_one_here(self, one: Outgoing, transaction: Transaction | None) -> SendResult:
        try:
            return super().send([one], transaction=transaction)[0]
        except InvalidMessage as error:
            logger.warning(
                "session refuses message %.80r: %s",
                one.message.id,
                on_one_line(error),
                extra={"event": "message_refused", "message_id": one.message.id[:80]},
            )
            return SendResult.REFUSED

    def _try_there(self, routed: Sequence[Outgoing]) -> Sending:
        try:
            return self._start_there(routed)
        except TransportUnavailable as error:
            logger.warning(
                "session could not send %d messages to %s: %s",
                len(routed),
                self.destinations.describe(),
                on_one_line(error),
                extra={"event": "destinations_unavailable"},
            )
            return Answered([SendResult.UNKNOWN] * len(routed))

    def _start_there(self, routed: Sequence[Outgoing]) -> Sending:
        there = self._there
        if isinstance(there, StartsSending):
            return there.start_sending(routed)
        return Answered(there.send(routed))
