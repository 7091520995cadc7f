"""Coroutine handlers that run concurrently: a step whose messages end in any order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from timeoutmgr.clock import CarriedClock
from timeoutmgr.contracts import Transaction
from timeoutmgr.crashpoints import reach
from timeoutmgr.endpoint.async_context import BESIDE_OTHERS, AsyncHandler, AsyncHandlerContext
from timeoutmgr.endpoint.coroutines import HandlerCoroutines
from timeoutmgr.endpoint.handlers import (
    HandledMessage,
    HandlerContext,
    HandlerStep,
    PreparedMessage,
)
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Received
from timeoutmgr.resilience.after_fork import ChildEnds
from timeoutmgr.telemetry import Operation
from timeoutmgr.transport.in_flight import HandlingOutcome
from timeoutmgr.transport.work import Work


@dataclass(frozen=True, slots=True)
class WorkAtOnce:
    """The unit of work as a concurrent coroutine sees it; the pump settles its effects later."""

    clock: CarriedClock
    is_atomic: bool

    @property
    def transaction(self) -> Transaction | None:
        """None: the transaction begins when the coroutine has ended."""
        return None

    def now(self) -> Micros | None:
        """Return the time of the clock beside the queues; None if only the host's clock counts."""
        return self.clock.carried()


@dataclass(frozen=True, slots=True)
class ConcurrentHandlerStep:
    """Runs coroutine handlers on the loop, and sends the messages that they collected."""

    step: HandlerStep
    handlers: Mapping[str, Sequence[AsyncHandler]]
    coroutines: HandlerCoroutines
    work: WorkAtOnce

    def handles(self, received: Received) -> bool:
        """Return whether the handlers of the message's type run concurrently with others."""
        return self.step.type_of(received.message) in self.handlers

    def begin(
        self, received: Received, ended: Callable[[HandlingOutcome], None]
    ) -> Callable[[], None]:
        """Begin the coroutines of *received*; an error before they begin ends the message."""
        try:
            self.work.clock.refresh()
            prepared = self.step.prepare(received, self.work)
        except Exception as error:
            ended(HandlingOutcome(received, error))
            return _nothing
        if prepared is None:
            ended(HandlingOutcome(received))
            return _nothing
        refusal = BESIDE_OTHERS if self.work.is_atomic else None
        context = AsyncHandlerContext(prepared.context, self.work.clock.carried, refusal=refusal)

        def end(error: Exception | None) -> None:
            context.end()
            ended(HandlingOutcome(received, error, None if error else context))

        return self.coroutines.begin(lambda: self._run(prepared, context, received), end)

    def settle(self, outcomes: Sequence[HandlingOutcome], work: Work) -> None:
        """Send the messages of handlers, in the order of their ends; fail each failed message."""
        handled: list[HandledMessage] = []
        for outcome in outcomes:
            error, context = outcome.error, outcome.effects
            if error is None and isinstance(context, HandlerContext):
                try:
                    handled.append(HandledMessage(outcome.received, context.keep()))
                except Exception as refusal:  # a delayed message to a missing queue
                    error = refusal
            if error is not None:
                work.fail(outcome.received, error)
        reach("handler.kept")
        self.step.finish(handled, work, alone=len(outcomes) == 1)

    async def _run(
        self, prepared: PreparedMessage, context: AsyncHandlerContext, received: Received
    ) -> None:
        with self.step.during(Operation.HANDLER, ((received.queue, received.message),)):
            found = self.handlers[self.step.type_of(received.message)]
            await await_each(found, prepared.body, context)


async def await_each(
    found: Sequence[AsyncHandler], message: object, context: AsyncHandlerContext
) -> None:
    """Await one handler after the other."""
    for handler in found:
        with ChildEnds():
            await handler(message, context)


def _nothing() -> None:
    return
