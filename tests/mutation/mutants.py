"""All mutants of the product's source. A mutant that no test notices is a promise not held."""

from __future__ import annotations

from typing import Final

from .listed import (
    batches,
    breakers,
    changes,
    coroutines,
    delayed,
    doors,
    foreign,
    keeping,
    levels,
    lives,
    migration,
    moving,
    operations,
    outages,
    owned_queues,
    polling,
    pump,
    queues,
    recurring,
    satellites,
    stores,
    window,
)
from .mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    *doors.MUTANTS,
    *polling.MUTANTS,
    *outages.MUTANTS,
    *keeping.MUTANTS,
    *levels.MUTANTS,
    *operations.MUTANTS,
    *changes.MUTANTS,
    *pump.MUTANTS,
    *batches.MUTANTS,
    *coroutines.MUTANTS,
    *recurring.MUTANTS,
    *window.MUTANTS,
    *breakers.MUTANTS,
    *satellites.MUTANTS,
    *delayed.MUTANTS,
    *stores.MUTANTS,
    *moving.MUTANTS,
    *lives.MUTANTS,
    *queues.MUTANTS,
    *owned_queues.MUTANTS,
    *foreign.MUTANTS,
    *migration.MUTANTS,
)
