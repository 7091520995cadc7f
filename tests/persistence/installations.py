"""How the tests of the partitions come by an installation, and empty it."""

from __future__ import annotations

from collections.abc import Callable

from tests.persistence.making import dispatch
from tests.persistence.ranging import Installation

Make = Callable[..., Installation]


def dispatch_all(installation: Installation) -> list[str]:
    """Dispatch all due timeouts; return their ids."""
    store, sent = installation.store(), list[str]()
    while chunk := store.claim(installation.clock.at, 100, "o"):
        if not chunk.keys:
            return sent
        sent += dispatch(store, chunk, at=installation.clock.at)
    return sent
