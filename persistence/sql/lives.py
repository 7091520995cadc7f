"""The lives of the owners that claim through one persistence."""

import logging
import threading
from uuid import uuid4

from timeoutmgr.database import Database
from timeoutmgr.database.owners import OwnerLives

logger = logging.getLogger(__name__)


class Lives:
    """Gives each owner a life under a name that nobody else has.

    A life is a lock, and taking one that is held would wait: for another persistence or the SQL
    queue of this process, or for a server that has not noticed yet that our connection broke. So
    every life has its own name, the owner's with a suffix; claims carry that. Safe for threads.
    """

    def __init__(self, database: Database) -> None:
        self._lives = OwnerLives(database)
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}

    def name_of(self, owner: str) -> str:
        """Return the name of the life of *owner*, which is held now.

        It begins if it has not yet, and anew, under another name, where its lock was lost.
        """
        with self._lock:
            self._renew(owner)
            name = self._names.get(owner)
            if name is None:
                name = f"{owner[:200]}#{uuid4().hex[:12]}"
                self._lives.begin(name)
                self._names[owner] = name
            return name

    def renew(self, owner: str) -> None:
        """Let a life that was lost with its connection end; what it held is free."""
        with self._lock:
            self._renew(owner)

    def _renew(self, owner: str) -> None:
        name = self._names.get(owner)
        if name is not None and not self._lives.is_unbroken(name):
            logger.warning("owner %s has lost its session lock, and takes another", name)
            self._lives.end(name)
            del self._names[owner]

    def gone(self, names: set[str]) -> set[str]:
        """Return those of *names* that live no more, here or elsewhere."""
        return self._lives.gone(names) if names else set()

    def end(self, owner: str) -> None:
        """End the life of *owner*, if it has one."""
        with self._lock:
            name = self._names.pop(owner, None)
        if name is not None:
            self._lives.end(name)

    def end_all(self) -> None:
        """End the lives of all owners; they may begin again."""
        with self._lock:
            for name in self._names.values():
                self._lives.end(name)
            self._names.clear()
