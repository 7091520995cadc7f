"""Wrong clocks for whole processes, by libfaketime; the monotonic clock stays the host's."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Final

import pytest

MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE


class WrongClock:
    """The wall clock of processes that are started with its ``env``, *ahead* of true time.

    With *ahead* below zero, it is behind.
    """

    def __init__(self, ahead: float) -> None:
        self.env: Final = {
            "LD_PRELOAD": str(_library()),
            "FAKETIME": f"{ahead:+.1f}",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


class SettableClock(WrongClock):
    """A clock that is right at first, and can be set while processes run by it."""

    def __init__(self, note: Path) -> None:
        super().__init__(0.0)
        del self.env["FAKETIME"]
        self.env.update({"FAKETIME_TIMESTAMP_FILE": str(note), "FAKETIME_NO_CACHE": "1"})
        self._note = note
        self.set(0.0)

    def set(self, ahead: float) -> None:
        """Set it to *ahead* seconds before the true time."""
        part = self._note.with_suffix(".part")
        part.write_text(f"{ahead:+.1f}\n")
        os.replace(part, self._note)


def true_time(at: float) -> float:
    """Return the true seconds since 1970 when the monotonic clock was *at*."""
    return at + time.time() - time.monotonic()


def require_faketime() -> None:
    """Skip the test where the library is not installed, or fail where nothing may be missing."""
    if shutil.which("faketime") is None or _library() is None:
        reason = "faketime is not installed (apt-get install faketime)"
        if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
            pytest.fail(f"{reason}; with CI=true nothing may be missing", pytrace=False)
        pytest.skip(reason)


def _library() -> Path | None:
    """Return the library's variant for programs with threads."""
    places = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime")
    for place in places:
        for found in Path("/").glob(f"{place[1:]}/libfaketimeMT.so.1"):
            return found
    return None
