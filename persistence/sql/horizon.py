"""From which key on this process reads the timeouts of an endpoint."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from timeoutmgr.contracts import Clock, Key
from timeoutmgr.instants import EARLIEST, Micros

FROM_THE_BEGINNING: Final = Key(EARLIEST, "")
FULL_LOOK: Final = 1.0
"""Seconds after which the next look begins at the very beginning again."""


@dataclass(frozen=True, slots=True)
class View:
    """A look from *start* on; *number* tells whether it is still the latest news."""

    start: Key
    number: int


class Horizon:
    """The first key that was there when last looked; safe for many threads.

    What was removed stays in an index until nobody can see it any more. While somebody holds an
    old snapshot (a backup, a long report), a look from the beginning walks over all that was
    dispatched since, and each look is longer than the one before. This one begins where the
    last one found something.

    It decides about nothing: who may have a key is the claims' matter. A row that comes to stand
    before the horizon is told by ``expect``, once it can be seen. What other processes store
    there is found by the next look from the beginning: after FULL_LOOK, and before saying that
    nothing is due.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._start = FROM_THE_BEGINNING
        self._number = 0
        self._full_look = clock.monotonic() + FULL_LOOK

    def view(self) -> View:
        """Return from where to look now."""
        with self._lock:
            if self._clock.monotonic() >= self._full_look:
                self._start = FROM_THE_BEGINNING
                self._full_look = self._clock.monotonic() + FULL_LOOK
            return View(self._start, self._number)

    def retreat(self) -> bool:
        """Begin at the very beginning again; return whether that is news."""
        with self._lock:
            was, self._start = self._start, FROM_THE_BEGINNING
            return was != FROM_THE_BEGINNING

    def reach(self, view: View, first: Key) -> None:
        """Note that a look from *view* found *first* first; a later ``expect`` counts more."""
        with self._lock:
            if view.number == self._number:
                self._start = first

    def expect(self, due: Micros) -> None:
        """Look again from *due* on: something was stored there, and can be seen now."""
        with self._lock:
            self._number += 1
            self._start = min(self._start, Key(due, ""))
