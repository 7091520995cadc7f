"""Lost transactions: tried again at once, and an outage only when they go on and on."""

import random
from typing import Final

IN_A_ROW: Final = 5
"""Conflicts without a success between, after which it is no chance any more."""
_LONGEST_PAUSE: Final = 0.02


class Conflicts:
    """Counts conflicts in a row; used by one thread."""

    def __init__(self) -> None:
        self._lost = 0

    def lost(self) -> float | None:
        """Note a conflict; return the seconds until another try, None where it is an outage."""
        self._lost += 1
        if self._lost > IN_A_ROW:
            return None
        # Two that meet again and again must not go on at the same moment.
        return random.uniform(0.001, _LONGEST_PAUSE) * self._lost

    def won(self) -> None:
        """Note a success."""
        self._lost = 0
