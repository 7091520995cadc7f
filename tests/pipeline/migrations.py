"""A source of timeouts, and a migration out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.persistence.making import SECOND, timeout
from timeoutmgr.cli.migrate.shared import sites
from timeoutmgr.cli.shared import Shared
from timeoutmgr.clock import SystemClock
from timeoutmgr.contracts import Timeout
from timeoutmgr.migration.places import LocationSpec, MigrationRequest
from timeoutmgr.migration.run import move_all
from timeoutmgr.pipeline.stores import Store

ENDPOINT = "sales"
DAY = 86_400 * SECOND


def due_tomorrow(amount: int, **changed: Any) -> list[Timeout]:
    """Timeouts due in sequence, from a day ahead on."""
    first = SystemClock().now() + DAY
    return [
        timeout(f"t{number:03}", first + number * SECOND, **changed) for number in range(amount)
    ]


def fill(store: Store, timeouts: list[Timeout]) -> list[Timeout]:
    """Store *timeouts*, and return them."""
    store.persistence.timeouts(ENDPOINT, SystemClock()).store_many(timeouts)
    return timeouts


def moved(source: Store, target: Store) -> None:
    """Move all timeouts that are pending."""
    asked = MigrationRequest(target=LocationSpec(url=target.name))
    with sites(Shared(config=Path(source.name)), asked, [ENDPOINT]) as [one]:
        assert move_all(one.parts, one.terms).verified
