"""Endpoint for asyncio programs: an Endpoint whose calls are awaited."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeAlias, Unpack, overload

from timeoutmgr.contracts import ConflictName, OnConflict
from timeoutmgr.endpoint.async_timeouts import AsyncTimeouts
from timeoutmgr.endpoint.configuration import EndpointConfiguration
from timeoutmgr.endpoint.endpoint import Endpoint, lasting_objects
from timeoutmgr.endpoint.handlers import NOT_GIVEN, chosen_options
from timeoutmgr.endpoint.off_loop import CallThreads, SenderOffLoop
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.classes import NO_BODY, TypedMessage
from timeoutmgr.message.labels import Labels
from timeoutmgr.resilience.silence import hurrying
from timeoutmgr.sender.bulk import OnSent
from timeoutmgr.sender.composer import SendKeywords, SendOptions, Sent, ToSend, TypedSendKeywords
from timeoutmgr.sender.in_transaction import require_endpoint_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    from timeoutmgr.contracts import DeliveryOptions

    OwnSession: TypeAlias = AsyncSession | AsyncConnection

_WATCH_EVERY: Final = 0.2


class AsyncEndpoint:
    """An Endpoint whose calls are awaited; ``async with AsyncEndpoint(config) as endpoint``.

    Each call runs in one of *threads* threads, with the context variables of its task, so that the
    event loop never waits for a server. Further concurrent calls wait for a free thread.

    Cancelling a task does not undo its call: a call that has not begun does not happen, and a call
    that has begun goes on in its thread. Send again with the same ``message_id`` if in doubt. After
    a cancelled ``start``, call ``close``; ``async with`` does so itself.
    """

    def __init__(self, config: EndpointConfiguration, *, threads: int = 8) -> None:
        if not isinstance(threads, int) or threads < 1:
            raise ConfigurationError(f"threads must be at least 1, got {threads!r:.80}")
        self._endpoint = _EndpointOnLoop(config, threads)
        self._threads = self._endpoint.threads

    @property
    def name(self) -> str:
        """The endpoint's name, and its input queue's."""
        return self._endpoint.name

    @property
    def critical_error(self) -> tuple[str, BaseException] | None:
        """The first critical error, if any."""
        return self._endpoint.critical_error

    @property
    def timeouts(self) -> AsyncTimeouts:
        """The pending timeouts of this endpoint's own timeout manager."""
        return AsyncTimeouts(self._endpoint.timeouts, self._threads.run)

    async def install(self, *, new_marker: bool = False) -> list[str]:
        """Create queues and tables that are missing; return the endpoint's queues."""
        return await self._threads.run(lambda: self._endpoint.install(new_marker=new_marker))

    async def purge(self, *, satellites: bool = False) -> Mapping[str, int]:
        """Remove all messages of the input queue, as ``Endpoint.purge``."""
        return await self._threads.run(lambda: self._endpoint.purge(satellites=satellites))

    async def start(self) -> None:
        """Start receiving; idempotent. Raises ConfigurationError or TransportUnavailable."""
        await self._threads.run(self._endpoint.start)

    async def stop(self) -> None:
        """Stop receiving; return when all handlers have ended, or were cancelled.

        In a coroutine handler it returns at once: the stop waits for that handler.
        """
        await self._in_thread(self._endpoint.stop)

    async def close(self) -> None:
        """Stop, and close every connection and thread; the endpoint cannot be used afterwards.

        In a coroutine handler it returns at once: the stop waits for that handler.
        """
        await self._in_thread(self._close)

    async def wait(self) -> None:
        """Wait until the endpoint is stopped, as by a critical error."""
        while not self._endpoint.wait(0):
            await asyncio.sleep(_WATCH_EVERY)

    async def run(self) -> None:
        """Start, run until SIGTERM, SIGINT or a critical error stops it, then close.

        For the main thread only. The loop's own signal handlers are removed at the end.
        """
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, asked.set)
        try:
            async with self:
                ends = [asyncio.ensure_future(end) for end in (asked.wait(), self.wait())]
                try:
                    with lasting_objects():
                        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for end in ends:
                        end.cancel()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            # Python does not call __aexit__ now, and a cancelled start goes on in its thread. The
            # shield protects against a second cancellation.
            await asyncio.shield(asyncio.to_thread(self._close))
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    @overload
    async def send(
        self,
        destination: str,
        message: TypedMessage,
        /,
        *,
        session: "OwnSession | None" = None,
        **given: Unpack[TypedSendKeywords],
    ) -> Sent: ...

    @overload
    async def send(
        self,
        destination: str,
        message_type: str,
        body: object,
        options: SendOptions | None = None,
        *,
        session: "OwnSession | None" = None,
        **given: Unpack[SendKeywords],
    ) -> Sent: ...

    async def send(
        self,
        destination: str,
        message_type: str | TypedMessage,
        body: object = NO_BODY,
        options: SendOptions | None = None,
        *,
        session: "OwnSession | None" = None,
        delay: timedelta | float | None = NOT_GIVEN,
        deliver_at: datetime | None = NOT_GIVEN,
        saga_id: str | None = NOT_GIVEN,
        headers: Mapping[str, str] = NOT_GIVEN,
        message_id: str | None = NOT_GIVEN,
        content_type: str | None = NOT_GIVEN,
        time_to_be_received: timedelta | None = NOT_GIVEN,
        delivery: "DeliveryOptions | None" = NOT_GIVEN,
        cancellable: bool = NOT_GIVEN,
        on_conflict: OnConflict | ConflictName | None = NOT_GIVEN,
        labels: Labels = NOT_GIVEN,
    ) -> Sent:
        """Send a message, delayed if ``delay`` or ``deliver_at`` is given; as ``Endpoint.send``.

        When this returns the message is durable. With *session*, an AsyncSession or an
        AsyncConnection, the statements run on that connection, and the message becomes durable with
        the caller's own commit.
        """
        chosen = chosen_options(options, locals())
        return await self._sent(destination, message_type, body, chosen, session)

    @overload
    async def send_local(
        self,
        message: TypedMessage,
        /,
        *,
        session: "OwnSession | None" = None,
        **given: Unpack[TypedSendKeywords],
    ) -> Sent: ...

    @overload
    async def send_local(
        self,
        message_type: str,
        body: object,
        options: SendOptions | None = None,
        *,
        session: "OwnSession | None" = None,
        **given: Unpack[SendKeywords],
    ) -> Sent: ...

    async def send_local(
        self,
        message_type: str | TypedMessage,
        body: object = NO_BODY,
        options: SendOptions | None = None,
        *,
        session: "OwnSession | None" = None,
        delay: timedelta | float | None = NOT_GIVEN,
        deliver_at: datetime | None = NOT_GIVEN,
        saga_id: str | None = NOT_GIVEN,
        headers: Mapping[str, str] = NOT_GIVEN,
        message_id: str | None = NOT_GIVEN,
        content_type: str | None = NOT_GIVEN,
        time_to_be_received: timedelta | None = NOT_GIVEN,
        delivery: "DeliveryOptions | None" = NOT_GIVEN,
        cancellable: bool = NOT_GIVEN,
        on_conflict: OnConflict | ConflictName | None = NOT_GIVEN,
        labels: Labels = NOT_GIVEN,
    ) -> Sent:
        """Send to this endpoint's own queue; otherwise as ``send``."""
        chosen = chosen_options(options, locals())
        return await self._sent(self.name, message_type, body, chosen, session)

    async def send_many(self, messages: Iterable[ToSend], *, on_sent: OnSent | None = None) -> int:
        """Send many messages, as ``Endpoint.send_many``; return how many.

        The thread that sends iterates *messages* and calls *on_sent*. After a cancel it draws no
        more messages, and sends those already drawn.
        """
        return await self._drawn(self._endpoint.send_many, messages, on_sent)

    async def store_many(self, messages: Iterable[ToSend], *, on_sent: OnSent | None = None) -> int:
        """Store many delayed messages, bypassing the queue, as ``Endpoint.store_many``."""
        return await self._drawn(self._endpoint.store_many, messages, on_sent)

    async def clear_timeouts(self, saga_id: str) -> None:
        """Ask the timeout manager to cancel the timeouts of a saga; see ``Endpoint``."""
        await self._threads.run(lambda: self._endpoint.clear_timeouts(saga_id))

    def snapshot(self) -> dict[str, float | str]:
        """Return the counters of this process and the state of its breakers."""
        return self._endpoint.snapshot()

    async def _sent(
        self,
        destination: str,
        message_type: str | TypedMessage,
        body: object,
        options: SendOptions,
        session: "OwnSession | None",
    ) -> Sent:
        send = partial(self._endpoint._send, destination, message_type, body, options)
        if session is None:
            return await self._threads.run(lambda: send(None))
        require_endpoint_of(session, on_loop=True)
        return await session.run_sync(send)

    async def _drawn(
        self, send: Callable[..., int], messages: Iterable[ToSend], on_sent: OnSent | None
    ) -> int:
        is_over = threading.Event()

        def drawn(source: Iterator[ToSend]) -> Iterator[ToSend]:
            for one in source:
                yield one
                if is_over.is_set():
                    return

        try:
            return await self._threads.run(lambda: send(drawn(iter(messages)), on_sent=on_sent))
        finally:
            is_over.set()

    async def _in_thread(self, stop: Callable[[], None]) -> None:
        """Run *stop* in a thread, and wait for it, except on the loop that it ends."""
        coroutines = self._endpoint.parts.coroutines
        if coroutines is not None and coroutines.is_here():
            threading.Thread(target=stop, name="timeoutmgr-stop").start()
        else:
            await asyncio.to_thread(stop)

    def _close(self) -> None:
        self._endpoint.close()
        with hurrying(self._endpoint.parts.servers):
            self._threads.close()
        # A cancelled start may have gone on after the first close.
        self._endpoint.close()


class _EndpointOnLoop(Endpoint):
    """Sends inside an asyncio session: only the session's own statements run on the loop."""

    def __init__(self, config: EndpointConfiguration, threads: int) -> None:
        super().__init__(config)
        self.threads: Final = CallThreads(self.name, threads)
        sender = SenderOffLoop(self._parts.sender, self.threads)
        self._outlet_inside = replace(self._outlet, sender=sender)
