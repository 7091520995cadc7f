"""Renewal of the leases that this process holds."""

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Final, Protocol
from weakref import WeakSet

from timeoutmgr.errors import TimeoutManagerError
from timeoutmgr.transport.sql.envelopes import LeaseTag
from timeoutmgr.transport.sql.leases import Leases
from timeoutmgr.transport.sql.wakeups import QueueWakeups

logger = logging.getLogger(__name__)

_NOT_RENEWED: Final = {"event": "leases_not_renewed"}

_TRIES_PER_LEASE = 3


class Holder(Protocol):
    """A holder of leased messages."""

    def held(self) -> list[LeaseTag]:
        """Return the held leases; called from the renewer's thread."""
        ...


class LeaseRenewer:
    """One daemon thread that renews the leases of all holders, three times in a lease.

    The thread renews the owner's session lock every *owner_check* seconds: an owner that lost the
    lock to a broken connection seems dead, and other owners would free its leases. Then the thread
    also gives back leases that an outage kept their holder from giving back.
    """

    def __init__(
        self, leases: Leases, wakeups: QueueWakeups, lease: float, owner_check: float
    ) -> None:
        self._leases = leases
        self._unreleased = UnreleasedLeases(leases, wakeups)
        self._interval = lease / _TRIES_PER_LEASE
        self._tick = min(owner_check, self._interval)
        self._holders: WeakSet[Holder] = WeakSet()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, holder: Holder) -> None:
        """Renew the leases of *holder* until its removal; start the thread and the session lock."""
        with self._lock:
            self._leases.acquire_session_lock()
            self._holders.add(holder)
            if self._thread is None:
                self._stop.clear()
                self._thread = threading.Thread(
                    target=self._run, name="timeoutmgr-lease-renewer", daemon=True
                )
                self._thread.start()

    def remove(self, holder: Holder) -> None:
        """Keep it no longer; twice is fine."""
        with self._lock:
            self._holders.discard(holder)

    def add_unreleased(self, queue: str, tags: Collection[LeaseTag]) -> None:
        """Give *tags* of *queue* back when the database answers; no receiver holds them."""
        self._unreleased.add(queue, tags)

    def give_back(self) -> None:
        """Give back unreleased leases, before a receiver leases more. Raises StorageUnavailable."""
        self._unreleased.give_back(self._held)

    def stop(self) -> None:
        """End the thread and our owner's life; twice is fine."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is not None:
            thread.join()
        self._leases.release_session_lock()

    def renew(self) -> int:
        """Renew all held leases once; return their number. Raises StorageUnavailable."""
        tags = self._held()
        self._leases.renew(tags)
        return len(tags)

    def _held(self) -> list[LeaseTag]:
        with self._lock:
            holders = list(self._holders)
        return [tag for holder in holders for tag in holder.held()]

    def _run(self) -> None:
        renew_at = time.monotonic() + self._interval
        failing = False
        while not self._stop.wait(self._tick):
            try:
                self._leases.keep_session_lock()
                if time.monotonic() >= renew_at:
                    self.renew()
                    renew_at = time.monotonic() + self._interval
                self.give_back()
                failing = False
            except TimeoutManagerError as error:
                # Once an outage, not once a second.
                level = logging.DEBUG if failing else logging.WARNING
                logger.log(
                    level,
                    "owner %s could not renew its leases: %s",
                    self._leases.owner,
                    error,
                    extra=_NOT_RENEWED,
                )
                failing = True
            except Exception:
                # The thread must outlive unforeseen errors: leases would lapse unseen.
                logger.exception(
                    "owner %s could not renew its leases", self._leases.owner, extra=_NOT_RENEWED
                )


class UnreleasedLeases:
    """Leases of ours that no receiver holds any more, to give back once the database answers.

    They are left over if the database goes away at the wrong time. The owner's session lock
    outlasts an outage, so that no other process would free them before they lapse. Safe for many
    threads.
    """

    def __init__(self, leases: Leases, wakeups: QueueWakeups) -> None:
        self._leases: Final = leases
        self._wakeups: Final = wakeups
        self._lock = threading.Lock()
        # A receiver waits for another's giving back: it must not lease the messages behind.
        self._release_lock = threading.Lock()
        self._tags: dict[str, set[LeaseTag]] = {}

    def add(self, queue: str, tags: Collection[LeaseTag]) -> None:
        """Note *tags* of *queue*, which no receiver holds now; some may never have been leased."""
        with self._lock:
            if tags:
                self._tags.setdefault(queue, set()).update(tags)

    def give_back(self, held: Callable[[], Collection[LeaseTag]]) -> None:
        """Give all back except the *held* leases. Raises StorageUnavailable; they are kept then."""
        if not self._tags:
            return
        with self._release_lock:
            with self._lock:
                noted = {queue: set(tags) for queue, tags in self._tags.items()}
            for queue, tags in noted.items():
                self._give_back(queue, tags, held)
                with self._lock:
                    self._tags[queue] -= tags
                    if not self._tags[queue]:
                        del self._tags[queue]

    def _give_back(
        self, queue: str, tags: set[LeaseTag], held: Callable[[], Collection[LeaseTag]]
    ) -> None:
        # In this order: a lease whose commit was lost may not have happened, and another receiver
        # of ours may have made the very same one since. It is held from before it is committed.
        leased = self._leases.leased(tags)
        if free := leased.difference(held()):
            self._leases.release(queue, free)
            self._wakeups.notify([queue])
