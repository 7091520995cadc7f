"""Leases of ours that nobody holds any more, because the database went away at the wrong time.

Our owner lives on over an outage, so that nobody else would free them before they lapse.
"""

import threading
from collections.abc import Callable, Collection
from typing import Final

from timeoutmgr.transport.sql.bells import Bells
from timeoutmgr.transport.sql.envelopes import Tag
from timeoutmgr.transport.sql.leases import Leases


class Orphans:
    """What is to be given back once the database answers. Safe for many threads."""

    def __init__(self, leases: Leases, bells: Bells) -> None:
        self._leases: Final = leases
        self._bells: Final = bells
        self._lock = threading.Lock()
        # A receiver waits for another's giving back: it must not take what comes behind.
        self._turn = threading.Lock()
        self._tags: dict[str, set[Tag]] = {}

    def add(self, queue: str, tags: Collection[Tag]) -> None:
        """Note *tags* of *queue*, which nobody holds now; some may never have been leased."""
        with self._lock:
            if tags:
                self._tags.setdefault(queue, set()).update(tags)

    def give_back(self, held: Callable[[], Collection[Tag]]) -> None:
        """Give all back but what is *held*. Raises StorageUnavailable; they are kept then."""
        if not self._tags:
            return
        with self._turn:
            with self._lock:
                noted = {queue: set(tags) for queue, tags in self._tags.items()}
            for queue, tags in noted.items():
                self._give_back(queue, tags, held)
                with self._lock:
                    self._tags[queue] -= tags
                    if not self._tags[queue]:
                        del self._tags[queue]

    def _give_back(self, queue: str, tags: set[Tag], held: Callable[[], Collection[Tag]]) -> None:
        # In this order: a lease whose commit was lost may not have happened, and another receiver
        # of ours may have made the very same one since. It is held from before it is committed.
        leased = self._leases.leased(tags)
        if free := leased.difference(held()):
            self._leases.release(queue, free)
            self._bells.ring([queue])
