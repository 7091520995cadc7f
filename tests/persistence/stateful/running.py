"""The settings of the machine: as many steps as find most faults, and not more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.persistence.stateful.machine import StoreMachine
from tests.persistence.stateful.subjects import Subject

TRYING: Final = settings(
    deadline=None,
    database=None,
    print_blob=True,  # a failing example can be run again
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
CATCHING: Final = settings(
    TRYING,
    derandomize=True,  # a fault that is known must be caught in every run
    max_examples=2_000,
    phases=[Phase.generate],
)


def run(make: Callable[[], Subject], how: settings) -> None:
    """Run the machine; *make* makes a new subject for each example."""

    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__(make)

    run_state_machine_as_test(Machine, settings=how)
