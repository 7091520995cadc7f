"""The timeout store of one endpoint in a SQL database."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final
from uuid import uuid4

from timeoutmgr.contracts import (
    CancelResult,
    ChangeResult,
    Chunk,
    Clock,
    Count,
    Key,
    MessageRows,
    Move,
    ProcessRecord,
    Repeat,
    StoreStatistics,
    Taken,
    Timeout,
    TimeoutFilter,
    TimeoutState,
    Transaction,
)
from timeoutmgr.database import Database
from timeoutmgr.instants import LATEST, Micros

from . import heartbeats
from .cancelling import SagaCancelling
from .changing import Changing
from .claiming import Claiming, Wish
from .closing_at_once import is_for
from .context import StoreContext
from .lives import Lives
from .looking import Looking
from .moving import Moving
from .partitions import Partitions
from .purging import Purging
from .repeats import Repeats
from .settings import SqlSettings
from .storing import Storing
from .tables import Tables
from .taking import Taking


class SqlTimeoutStore:
    """See :class:`timeoutmgr.contracts.TimeoutStore`; each method's work has its own module.

    *atomic_dispatch* says that timeouts are sent in the transaction in which they are closed.
    """

    def __init__(
        self,
        endpoint: str,
        clock: Clock,
        *,
        database: Database,
        tables: Tables,
        settings: SqlSettings,
        lives: Lives,
        atomic_dispatch: bool = False,
    ) -> None:
        self.context: Final = StoreContext(
            endpoint=endpoint,
            database=database,
            tables=tables,
            settings=settings,
            clock=clock,
            lives=lives,
            atomic=atomic_dispatch,
            node=socket.gethostname()[:255],
            me=uuid4().hex,
        )
        self._claiming = Claiming(self.context)
        self._taking = Taking(self.context, self._claiming.expect)
        self._changing = Changing(self.context)
        self._repeats = Repeats(self.context, self._changing)
        self._storing = Storing(self.context, self._repeats)
        self._sagas = SagaCancelling(self.context)
        self._looking = Looking(self.context)
        self._purging = Purging(self.context)
        self._partitions = Partitions(self.context)

    @property
    def endpoint(self) -> str:
        """The endpoint whose timeouts these are."""
        return self.context.endpoint

    def now(self, *, transaction: Transaction | None = None) -> Micros:
        """Return the time that due times are compared with."""
        if transaction is not None:
            return self.context.now(transaction)
        if self.context.has_database_clock:
            return self.context.database.now(self.context.clock)
        return self.context.clock.now()

    @property
    def goes_by_host(self) -> bool:
        """Whether due times are compared with the host's clock, not with the database's."""
        return not self.context.has_database_clock

    def ping(self) -> None:
        """Return if the database answers."""
        self.context.database.ping()

    def store_many(
        self, timeouts: Sequence[Timeout], *, transaction: Transaction | None = None
    ) -> Sequence[Repeat]:
        """Store all or none; return those whose id was used before.

        Raises MessageRejected for what cannot be stored, and IdInUse.
        """
        repeats = self._storing.store_many(timeouts, transaction)
        if timeouts and transaction is None:
            self.expect(min(timeout.due for timeout in timeouts))
        return repeats

    def examine(self, timeouts: Sequence[Timeout], *, transaction: Transaction) -> Sequence[Repeat]:
        """Return what would become of those of *timeouts* whose id was used before."""
        return self._repeats.examine(timeouts, transaction)

    def claim(
        self,
        now: Micros,
        limit: int,
        owner: str,
        *,
        chunks: int = 1,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> Chunk:
        """Hand out at most *chunks* times *limit* keys that are due, or soon, to *owner*."""
        wish = Wish(now=now, size=limit, owner=owner, chunks=chunks, ahead=ahead)
        return self._claiming.claim(wish, transaction)

    def take_many(
        self,
        token: str,
        keys: Sequence[Key],
        *,
        ahead: Micros = 0,
        transaction: Transaction | None = None,
    ) -> AbstractContextManager[Taken]:
        """Take the timeouts of *keys* that are due, or are *ahead* from now, in hand."""
        return self._taking.take_many(token, keys, ahead, transaction)

    def mover(self, into: MessageRows, allows: Callable[[str], bool]) -> Move | None:
        """Return what moves timeouts *into* queues of this very database; PostgreSQL's only."""
        return Moving(self.context, into, allows).move_many if is_for(self.context) else None

    def release(self, token: str, *, maybe_handed_on: bool = False) -> None:
        """Give a claim back that was not, or perhaps not, handed on."""
        self._claiming.release(token, maybe_handed_on)

    def expect(self, due: Micros) -> None:
        """Hear that a timeout of *due* was stored, and is committed."""
        self._claiming.expect(due)

    def next_due(self) -> Micros | None:
        """Return the earliest due instant stored, or None."""
        return self._claiming.next_due()

    def find(self, timeout_id: str) -> tuple[TimeoutState, Timeout | None] | None:
        """Return the state of an id, and its row while it is pending."""
        return self._looking.find(timeout_id)

    def key_of(self, timeout_id: str) -> Key | None:
        """Return the key of a pending timeout."""
        return self._looking.key_of(timeout_id)

    def list(
        self, which: TimeoutFilter, *, limit: int = 100, after: Key | None = None
    ) -> list[Timeout]:
        """Return a page of pending timeouts."""
        return self._looking.page(which, limit, after)

    def count(self, which: TimeoutFilter) -> int:
        """Return how many pending timeouts match."""
        return self._looking.count(which)

    def count_in_bounds(self, which: TimeoutFilter) -> Count:
        """Return how many pending timeouts match, exact while that costs little."""
        return self._looking.count_in_bounds(which)

    def cancel(self, timeout_id: str) -> CancelResult:
        """Cancel one."""
        return self._changing.cancel(timeout_id)

    def cancel_saga(
        self,
        saga_id: str,
        *,
        sent_until: Micros | None = None,
        keeping: Collection[str] = (),
        transaction: Transaction | None = None,
    ) -> int:
        """Cancel all of a saga that are not in other hands; return how many."""
        until = LATEST if sent_until is None else sent_until
        return self._sagas.cancel(saga_id, until, frozenset(keeping), transaction)

    def reschedule(self, timeout_id: str, due: Micros) -> ChangeResult:
        """Move one to another due time."""
        result = self._changing.reschedule(timeout_id, due)
        self.expect(due)
        return result

    def statistics(self) -> StoreStatistics:
        """Return what ``timeoutmgr status`` shows."""
        return self._looking.statistics()

    def purge(self) -> int:
        """Remove a bounded number of rows past retention; return how many."""
        return self._purging.purge()

    def purge_lag(self) -> Micros:
        """Return for how long the oldest row past retention should have been removed; 0: none."""
        return self._purging.lag()

    def tend(self) -> bool:
        """Do the next short step for the partitions, if there is one; return whether more is."""
        return self._partitions.step()

    def heartbeat(self, owner: str, state: Mapping[str, str]) -> Micros | None:
        """Write a heartbeat of this process; about once a minute is enough."""
        return heartbeats.heartbeat(self.context, owner, state)

    def farewell(self, owner: str) -> None:
        """Take the heartbeat of a process away that stopped cleanly."""
        heartbeats.farewell(self.context, owner)

    def processes(self) -> Sequence[ProcessRecord]:
        """Return what the endpoint's processes last said, the latest first."""
        return heartbeats.processes(self.context)
