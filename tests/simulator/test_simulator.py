from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator.__main__ import main
from tests.simulator.faults import SITES
from tests.simulator.mutants import MUTANTS, Mutant
from tests.simulator.report import describe, play
from tests.simulator.run import Run

REPOSITORY = Path(__file__).parents[2]
DIGEST = "from tests.simulator.run import Run; print(Run({seed}, timeouts=100).play().digest)"
MOST_SEEDS = 60


def test_every_promise_holds_over_fixed_seeds_and_each_fault_happens() -> None:
    for total in play(range(1, 61)):
        assert not total.broken, describe(total.broken[0])

    print(total.sentence())
    assert set(total.fired) == set(SITES), f"never: {set(SITES) - set(total.fired)}"
    assert total.crashes
    assert total.repeats


def test_every_promise_holds_over_fresh_seeds() -> None:
    seed = secrets.randbelow(10**9)
    print(f"first seed {seed}")

    for total in play(range(seed, seed + 20)):
        assert not total.broken, describe(total.broken[0])

    print(total.sentence())


def test_without_faults_everything_is_sent_once() -> None:
    result = Run(1, only=frozenset()).play()

    assert result.broken is None
    assert not result.fired
    assert not result.repeats


@pytest.mark.parametrize("seed", [8, 7])
def test_a_seed_replays_to_the_bit_under_any_hash_seed(seed: int) -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST.format(seed=seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("0", "1")
    }

    assert digests == {Run(seed, timeouts=100).play().digest}


def test_another_seed_is_another_run() -> None:
    assert Run(1, timeouts=20).play().digest != Run(2, timeouts=20).play().digest


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_wrong_order_or_a_missing_lock_is_caught(mutant: Mutant) -> None:
    for seed in range(1, MOST_SEEDS + 1):
        run = Run(seed, timeouts=200, parts=mutant.parts)
        broken = run.play().broken
        if broken is not None and broken[0] is mutant.promise:
            return

    pytest.fail(f"{MOST_SEEDS} seeds do not show that {mutant.promise} is broken")


def test_the_command_tells_its_sum_and_exits_zero(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--seed", "5", "--timeouts", "60"])

    assert code == 0
    assert "seeds 5…5" in capsys.readouterr().out
