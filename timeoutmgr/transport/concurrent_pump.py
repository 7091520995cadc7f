"""A pump that handles many messages concurrently, and settles them as they end.

Its thread receives and begins messages, and settles together all that have ended meanwhile: effects
and sends are confirmed first, then the messages are acknowledged. A message that takes long does
not hold up the others.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from timeoutmgr.contracts import Receiver, StandsBack, TransportSession
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import HandlerStopped, LeaseLost, MessageRejected, StorageConflict
from timeoutmgr.message.message import Received
from timeoutmgr.transport.batch_progress import LONG_HANDLING, may_return
from timeoutmgr.transport.in_flight import ConcurrentHandling, EndedAttempt, InFlight
from timeoutmgr.transport.pump import (
    IDLE_WAIT,
    ConsumedQueue,
    Consumption,
    FailedAttempt,
    Pump,
    PumpSurroundings,
)
from timeoutmgr.transport.work import LINGER, OUTAGES, Work

_PREFETCHED: Final = 2
"""Messages that a broker may send to each pump, per message that the pump may handle."""
_HANDLED_PER_AHEAD: Final = 2
"""Messages that a pump may handle, per message that it receives ahead."""


class ConcurrentPump(Pump):
    """Consumes one queue in one thread; its messages are handled elsewhere.

    Messages that the concurrent step does not handle are handled in this thread, as in a ``Pump``.
    """

    def __init__(
        self,
        consumption: Consumption,
        surroundings: PumpSurroundings,
        concurrent: ConcurrentHandling,
    ) -> None:
        super().__init__(consumption, surroundings)
        self._concurrent = concurrent
        self._flight: InFlight | None = None
        self._ahead: deque[Received] = deque()
        """Received and not begun, so that a slot that becomes free need not wait for a receive."""
        self._room = 0
        self._unsettled = 0
        """Number of ended attempts that are being settled, and still occupy their slots."""
        self._outage: Exception | None = None
        self._stood_back = False

    def pump_once(self, session: TransportSession, receiver: Receiver, wait: float) -> int:
        """Settle what has ended, begin what was received ahead, and receive more."""
        self._settle_ended(ConsumedQueue(session, receiver))
        flight = self._flight_of(receiver)
        if self._outage is not None:
            self._wait_out(flight, wait)
            return 0
        self._begin_ahead(flight)
        free = self._concurrent.slots.free
        self._room = min(self._most, free + self._most_ahead - len(self._ahead))
        count = super().pump_once(session, receiver, wait if free else 0) if self._room > 0 else 0
        if not (count or free):
            self._wait_for_a_slot(flight, receiver, wait)
        return count

    def _consume(self) -> None:
        try:
            super()._consume()
        finally:
            flight, self._flight, self._outage = self._flight, None, None
            self._ahead.clear()
            if flight is not None:
                flight.abandon()

    def _finish(self, opened: ConsumedQueue) -> None:
        flight = self._flight_of(opened.receiver)
        if self._ahead:  # so that other processes need not wait for this one
            opened.receiver.release([*self._ahead])
            self._ahead.clear()
        while not flight.is_empty:
            flight.wait(IDLE_WAIT)
            self._settle_ended(opened)

    @property
    def _most(self) -> int:
        """Return the maximum number of messages to receive."""
        if self._concurrent.is_alone:
            return self._concurrent.most
        return min(self._pace.limit, self._concurrent.most)

    @property
    def _limit(self) -> int:
        return self._room

    @property
    def _prefetch(self) -> int:
        return _PREFETCHED * self._share

    @property
    def _most_ahead(self) -> int:
        # None beside plain handlers: a handler in this thread would hold them up.
        may_receive = self._concurrent.is_alone and not self._stood_back
        return self._share // _HANDLED_PER_AHEAD if may_receive else 0

    @property
    def _share(self) -> int:
        """Return the number of slots for each pump."""
        return -(-self._concurrent.most // self._concurrent.pumps)

    def _flight_of(self, receiver: Receiver) -> InFlight:
        if self._flight is None:
            self._flight = InFlight(self._concurrent.slots, receiver.interrupt)
        return self._flight

    def _handle_in_order(self, batch: Sequence[Received], opened: ConsumedQueue) -> None:
        others: list[Received] = []
        for received in batch:
            to = self._ahead if self._concurrent.step.handles(received) else others
            to.append(received)
        self._begin_ahead(self._flight_of(opened.receiver))
        if others and self._ahead and not self._concurrent.is_alone:
            # Another pump was faster, and a plain handler here may take long.
            opened.receiver.release(self._pop_returnable())
        super()._handle_in_order(others, opened)

    def _begin_ahead(self, flight: InFlight) -> None:
        """Begin received messages, as far as there are slots."""
        reserved = self._concurrent.slots.reserve(len(self._ahead))
        try:
            while reserved:
                flight.begin(self._ahead.popleft(), self._concurrent.step)
                reserved -= 1
                self._stood_back = False
        finally:
            if reserved:  # a message could not be begun
                self._concurrent.slots.give(reserved)

    def _wait_for_a_slot(self, flight: InFlight, receiver: Receiver, wait: float) -> None:
        """Wait; after a while, give the messages that were not begun to other consumers."""
        if flight.wait(min(wait, LONG_HANDLING), for_slot=True):
            self._around.stop.wait(LINGER)  # to settle several together
            return
        if self._stood_back:
            return
        self._stood_back = True
        if isinstance(receiver, StandsBack):
            self._stand_back(receiver)

    def _stand_back(self, receiver: StandsBack) -> None:
        back = self._pop_returnable()
        try:
            given = receiver.stand_back(back, may_return)
        except StorageConflict:
            self._ahead.extendleft(reversed(back))
            self._stood_back = False  # they are offered again after the next wait
            return
        self._around.telemetry.count("messages_given_back", given)

    def _pop_returnable(self) -> Sequence[Received]:
        """Remove and return the messages that were not begun and may be given back."""
        back = [received for received in self._ahead if may_return(received)]
        self._ahead = deque(received for received in self._ahead if not may_return(received))
        return back

    def _wait_out(self, flight: InFlight, wait: float) -> None:
        """Wait for the neighbours of a message that met an outage, then raise the outage."""
        if flight.is_empty:
            outage, self._outage = self._outage, None
            assert outage is not None, "this is called during an outage"
            raise outage
        flight.wait(wait)

    def _settle_ended(self, opened: ConsumedQueue) -> None:
        """Settle the attempts that ended; on an error, free the slots of the unsettled attempts.

        Their messages go back to the queue when the receiver is closed.
        """
        ended = self._flight_of(opened.receiver).collect_ended()
        self._unsettled = len(ended)
        try:
            if ended:
                self._settle(ended, opened)
        finally:
            if self._unsettled:
                self._free(self._unsettled)

    def _free(self, count: int) -> None:
        """Free the slots of *count* attempts that ended."""
        self._unsettled -= count
        self._concurrent.slots.give(count)

    def _settle(self, ended: Sequence[EndedAttempt], opened: ConsumedQueue) -> None:
        """Settle *ended* together; if that fails, one by one."""
        try:
            failed = self._settle_together(ended, opened)
        except StorageConflict as error:
            pause = self._conflicts.lost()
            if pause is None:
                self._leave_in_queue(ended, error)
                return
            self._around.telemetry.count("storage_conflicts")
            self._around.stop.wait(pause)
            self._settle(ended, opened)
        except OUTAGES as error:
            self._leave_in_queue(ended, error)
        except Exception as error:
            if len(ended) > 1:
                for each in ended:
                    self._settle([each], opened)
                return
            self._end_alone(ended[0], error, opened)
        else:
            self._conflicts.won()
            self._free(len(ended) - len(failed))
            for each, reason in failed:
                self._end_alone(each, reason, opened)

    def _leave_in_queue(self, ended: Sequence[EndedAttempt], outage: Exception) -> None:
        self._outage = outage
        self._free(len(ended))

    def _settle_together(
        self, ended: Sequence[EndedAttempt], opened: ConsumedQueue
    ) -> Sequence[tuple[EndedAttempt, Exception]]:
        with Work(opened.session, opened.receiver, self._around.mode) as work:
            self._concurrent.step.settle([each.outcome for each in ended], work)
            reach("pump.handled")
            self._settle_handled([each.outcome.received for each in ended], work)
        errors = {id(received): self._failure_of(error) for received, error in work.failed}
        pairs = ((each, errors.get(id(each.outcome.received))) for each in ended)
        return [(each, error) for each, error in pairs if error is not None]

    def _end_alone(self, ended: EndedAttempt, error: Exception, opened: ConsumedQueue) -> None:
        """Recover a failed message; it keeps its slot if it is retried at once."""
        received = ended.outcome.received
        if self._is_retried(FailedAttempt(received, error, ended.attempt), opened):
            step = self._concurrent.step
            self._flight_of(opened.receiver).begin(received, step, ended.attempt + 1)
            self._unsettled -= 1  # the new attempt occupies its slot
        else:
            self._free(1)

    def _is_retried(self, failed: FailedAttempt, opened: ConsumedQueue) -> bool:
        try:
            if isinstance(failed.error, LeaseLost):
                self._leave([failed.received], opened.receiver)
            elif isinstance(failed.error, HandlerStopped):
                # A stopped handler's message goes back to its queue when the receiver closes.
                self._around.telemetry.count("handlers_stopped")
            elif isinstance(failed.error, OUTAGES):
                self._outage = failed.error
            elif isinstance(failed.error, MessageRejected):
                self._move_to_error(failed.received, failed.error, opened)
            else:
                return self._retries_now(failed, opened)
        except LeaseLost:
            self._leave([failed.received], opened.receiver)
        except OUTAGES as outage:
            self._outage = outage
        return False
