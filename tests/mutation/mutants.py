"""All mutants of the product's source. A mutant that no test notices is a promise not held."""

from __future__ import annotations

from typing import Final

from .listed import (
    batches,
    breakers,
    delayed,
    doors,
    keeping,
    levels,
    lives,
    migration,
    moving,
    operations,
    outages,
    polling,
    pump,
    queues,
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
    *pump.MUTANTS,
    *batches.MUTANTS,
    *window.MUTANTS,
    *breakers.MUTANTS,
    *satellites.MUTANTS,
    *delayed.MUTANTS,
    *stores.MUTANTS,
    *moving.MUTANTS,
    *lives.MUTANTS,
    *queues.MUTANTS,
    *migration.MUTANTS,
)
