"""Window of a bulk send: messages are written as they are added, with one wait for all results."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeAlias

from timeoutmgr.contracts import Sending, SendResult, StartsSending, TransportSession
from timeoutmgr.errors import Unroutable
from timeoutmgr.message.message import Outgoing

Send: TypeAlias = Callable[[TransportSession, Sequence[Outgoing]], list[SendResult]]
Missing: TypeAlias = Callable[[TransportSession, Sequence[str]], list[str]]


@dataclass(slots=True)
class SendingWindow:
    """A context for one thread and one session, which is acquired with the first messages.

    With *at_once*, a session that need not wait for its broker writes messages when they are added.
    Otherwise the window collects the messages, and ``results`` sends them by *send*.
    """

    lend: Callable[[], AbstractContextManager[TransportSession]]
    missing: Missing
    send: Send
    at_once: bool = field(kw_only=True)
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _session: TransportSession | None = field(default=None, init=False)
    _under_way: list[Sending] = field(default_factory=list, init=False)
    _kept: list[Outgoing] = field(default_factory=list, init=False)
    _failure: BaseException | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an error the pool must close the session, even if its user continued.
        failure = error or self._failure
        if failure is None:
            self._stack.close()
        else:
            self._stack.__exit__(type(failure), failure, failure.__traceback__)

    def add(self, outgoing: Sequence[Outgoing], *, finally_for: Sequence[str] = ()) -> None:
        """Send *outgoing* after the messages that were added before.

        Raises Unroutable for a missing queue of *finally_for*, or TransportUnavailable, with
        nothing of *outgoing* sent; messages that were added before keep their results.
        """
        try:
            session = self._lent()
            missing = self.missing(session, finally_for)
            if not missing:
                self._begin(session, outgoing)
        except BaseException as error:
            self._failure = error
            raise
        if missing:
            raise Unroutable(missing[0])

    def results(self) -> list[SendResult]:
        """Wait, and return the result of each added message, in order; call it once.

        Raises TransportUnavailable if no message has a result.
        """
        if self._kept:
            return self.send(self._lent(), self._kept)
        return [result for sending in self._under_way for result in sending.results()]

    def _begin(self, session: TransportSession, outgoing: Sequence[Outgoing]) -> None:
        if self.at_once and isinstance(session, StartsSending):
            self._under_way.append(session.start_sending(outgoing))
        else:
            self._kept += outgoing

    def _lent(self) -> TransportSession:
        if self._session is None:
            self._session = self._stack.enter_context(self.lend())
        return self._session
