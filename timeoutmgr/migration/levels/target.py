"""Into native delay levels: each timeout is published with the delay that is left to it then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final, cast

from timeoutmgr.contracts import Clock, SendResult, TopologySession, TransportSession
from timeoutmgr.errors import DelayTooLong, InvalidMessage, MigrationFailed
from timeoutmgr.message.instants import from_micros
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.validation import Limits, check_destination
from timeoutmgr.migration.runs import Batch, Delivered, Item, Problem, Survey
from timeoutmgr.native.levels import binding_key, seconds_until
from timeoutmgr.native.levels import check_destination as check_bindable
from timeoutmgr.native.names import NameSet
from timeoutmgr.native.routes import to_levels
from timeoutmgr.native.topology import delay_topology
from timeoutmgr.transport.kombu_transport import KombuTransport

_MOST_AT_ONCE: Final = 5_000
"""Messages that are written before their confirms are waited for: a batch, as it is by default."""


@dataclass(frozen=True, slots=True)
class LevelsTarget:
    """See :class:`timeoutmgr.migration.Target`; the levels called *names* of a RabbitMQ.

    *clock* is that of the place that due times come from: see :class:`OriginClock`.

    A queue cannot list its messages. So a batch that a crash interrupted is sent once more, each
    message under the id it had: nothing is lost, and some of one batch may be there twice.
    """

    transport: KombuTransport
    names: NameSet
    limits: Limits
    clock: Clock

    @property
    def knows_what_it_has(self) -> bool:
        """No queue does."""
        return False

    def describe(self) -> str:
        """Return the broker and the names, without secrets."""
        return f"{self.transport.describe()} {self.names.name}"

    def now(self) -> None:
        """Return no time: a level counts a delay, and has no clock."""

    def problems(self, survey: Survey) -> Sequence[Problem]:
        """Return the missing levels and destinations, and a due time beyond the longest level."""
        found = []
        if survey.latest is not None:
            try:
                seconds_until(survey.latest, self.clock.now())
            except DelayTooLong as error:
                found.append(
                    Problem(
                        f"due {from_micros(survey.latest).isoformat()}",
                        str(error),
                        "it stays in the store if you leave it out with --until",
                    )
                )
        names = []
        for name in survey.destinations:
            try:
                self.check(name)
                names.append(name)
            except InvalidMessage as error:
                found.append(Problem(repr(name), str(error), "--rename it"))
        with _opened(self.transport.session()) as session:
            levels = session.missing(delay_topology(self.names))
            if levels:
                missing = f"{len(levels)} exchanges and queues of the levels are missing"
                found.append(Problem(self.names.name, missing, "run `timeoutmgr install` there"))
            for name in session.missing_queues(names):
                many = survey.destinations[name]
                found.append(
                    Problem(
                        repr(name),
                        f"there is no such queue for {many} timeouts",
                        "install the endpoint that owns it, or --rename it",
                    )
                )
        return found

    def check(self, destination: str) -> None:
        """Raise InvalidMessage where no message may go to *destination*, or it cannot be bound."""
        check_destination(destination, self.limits)
        check_bindable(destination)

    def open(self, run_id: str) -> None:
        """Do nothing: a broker has no fencing token."""

    def deliver(self, run_id: str, batch: Batch, items: Sequence[Item]) -> Delivered:
        """Publish *items* and wait until the broker has confirmed each."""
        for name in {item.timeout.destination for item in items}:
            self.check(name)
        outgoing = [
            to_levels(
                Outgoing(item.timeout.destination, item.timeout.message),
                item.timeout.due,
                self.names,
                self.clock,
            )
            for item in items
        ]
        with _opened(self.transport.session_of_batches(_MOST_AT_ONCE)) as session:
            # Bound at the delivery exchange before anything can arrive there.
            queues = sorted({one.destination for one in outgoing})
            missing = session.bind_queues(queues, self.names.delivery, binding_key)
            if missing:
                raise MigrationFailed(
                    f"run {run_id}, batch {batch.no}: the queues {', '.join(missing)} are gone; "
                    "create them and run again, or abort"
                )
            results = session.send(outgoing)
        refuse_unconfirmed(run_id, batch, results)
        return Delivered(len(results))

    def present(self, ids: Sequence[str]) -> set[str]:
        """Refuse to answer."""
        raise NotImplementedError("a queue cannot be asked for an id")

    def shut(self, run_id: str) -> None:
        """Do nothing: a broker has no fencing token; only the ledger excludes a second runner."""

    def close(self) -> None:
        """Leave the transport to its owner."""


@contextmanager
def _opened(session: TransportSession) -> Iterator[TopologySession]:
    with closing(session):
        yield cast(TopologySession, session)


_CONFIRMED: Final = SendResult.CONFIRMED


def refuse_unconfirmed(run_id: str, batch: Batch, results: Sequence[SendResult]) -> None:
    """Raise MigrationFailed where the broker has not confirmed each."""
    others = [result.value for result in results if result is not _CONFIRMED]
    if others:
        raise MigrationFailed(
            f"run {run_id}, batch {batch.no}: {len(others)} of {len(results)} messages were not "
            f"confirmed ({', '.join(sorted(set(others)))}); run again to send the batch once more"
        )
