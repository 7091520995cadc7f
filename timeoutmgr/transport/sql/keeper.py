"""The keeper moves on the leases of what this process holds, as long as it lives."""

import logging
import threading
import time
from collections.abc import Collection
from typing import Protocol
from weakref import WeakSet

from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.transport.sql.bells import Bells
from timeoutmgr.transport.sql.envelopes import Tag
from timeoutmgr.transport.sql.leases import Leases
from timeoutmgr.transport.sql.orphans import Orphans

logger = logging.getLogger(__name__)

_TRIES_PER_LEASE = 3


class Holder(Protocol):
    """Somebody who has leased messages in hand."""

    def held(self) -> list[Tag]:
        """Return what is in hand; called from the keeper's thread."""
        ...


class LeaseKeeper:
    """One daemon thread that renews the leases of all holders, three times in a lease.

    It looks after our owner's life every *life_check* seconds: who lost it to a broken connection
    seems dead, and would lose to the others what it leases. Then it also gives back what an outage
    kept its holder from giving back.
    """

    def __init__(self, leases: Leases, bells: Bells, lease: float, life_check: float) -> None:
        self._leases = leases
        self._orphans = Orphans(leases, bells)
        self._interval = lease / _TRIES_PER_LEASE
        self._tick = min(life_check, self._interval)
        self._holders: WeakSet[Holder] = WeakSet()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, holder: Holder) -> None:
        """Keep what *holder* holds, until it is removed; starts the thread, and our life."""
        with self._lock:
            self._leases.begin()
            self._holders.add(holder)
            if self._thread is None:
                self._stop.clear()
                self._thread = threading.Thread(
                    target=self._run, name="timeoutmgr-lease-keeper", daemon=True
                )
                self._thread.start()

    def remove(self, holder: Holder) -> None:
        """Keep it no longer; twice is fine."""
        with self._lock:
            self._holders.discard(holder)

    def orphan(self, queue: str, tags: Collection[Tag]) -> None:
        """Have *tags* of *queue* given back when the database answers; nobody holds them now."""
        self._orphans.add(queue, tags)

    def give_back(self) -> None:
        """Give back what is orphaned, before anybody takes more. Raises StorageUnavailable."""
        self._orphans.give_back(self._held)

    def stop(self) -> None:
        """End the thread and our owner's life; twice is fine."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is not None:
            thread.join()
        self._leases.end()

    def renew(self) -> int:
        """Renew all leases in hand once; return how many. Raises StorageUnavailable."""
        tags = self._held()
        self._leases.renew(tags)
        return len(tags)

    def _held(self) -> list[Tag]:
        with self._lock:
            holders = list(self._holders)
        return [tag for holder in holders for tag in holder.held()]

    def _run(self) -> None:
        renew_at = time.monotonic() + self._interval
        failing = False
        while not self._stop.wait(self._tick):
            try:
                self._leases.live()
                if time.monotonic() >= renew_at:
                    self.renew()
                    renew_at = time.monotonic() + self._interval
                self.give_back()
                failing = False
            except TimeoutManagerError as error:
                # Once an outage, not once a second.
                level = logging.DEBUG if failing else logging.WARNING
                logger.log(level, "leases of %s not renewed: %s", self._leases.owner, error)
                failing = True
            except Exception:
                # The thread must outlive what it did not foresee: leases would lapse unseen.
                logger.exception("leases of %s not renewed", self._leases.owner)
