"""Which fault happens when is drawn from the seed alone."""

from __future__ import annotations

from dataclasses import replace

from chaos import ChaosSettings, FaultKind, plan


def test_one_seed_is_one_plan() -> None:
    settings = ChaosSettings(seed=7)

    assert plan(settings) == plan(settings) != plan(replace(settings, seed=8))


def test_leaving_a_fault_out_does_not_move_the_other_faults() -> None:
    settings = ChaosSettings(seed=7)

    without = plan(settings, set(FaultKind) - {FaultKind.KILL})

    assert without == [fault for fault in plan(settings) if fault.kind is not FaultKind.KILL]


def test_faults_come_in_order_and_end_in_time() -> None:
    faults = plan(ChaosSettings(seed=7, seconds=20))

    assert {fault.kind for fault in faults} == set(FaultKind)
    times = [fault.at for fault in faults]
    assert times == sorted(times)
    assert times[-1] < 20


def test_some_pauses_are_longer_than_a_claim() -> None:
    settings = ChaosSettings(seed=7, claim_time=5, seconds=600)

    lengths = [fault.length for fault in plan(settings, {FaultKind.PAUSE})]

    assert min(lengths) < 5 < max(lengths)
