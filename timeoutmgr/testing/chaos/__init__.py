"""A chaos run: worker processes die, hang and lose connections while messages keep coming.

``python -m timeoutmgr.testing.chaos --help``, or :func:`run_chaos` from code. It ends with a
verdict: what was accepted against what was delivered, and whether a promise broke.
"""

from timeoutmgr.testing.chaos.judge import Migrated, Percentiles, Verdict
from timeoutmgr.testing.chaos.plan import Fault, FaultKind, plan
from timeoutmgr.testing.chaos.play import run_chaos
from timeoutmgr.testing.chaos.processes import ChaosFailed
from timeoutmgr.testing.chaos.settings import ChaosSettings

__all__ = [
    "ChaosFailed",
    "ChaosSettings",
    "Fault",
    "FaultKind",
    "Migrated",
    "Percentiles",
    "Verdict",
    "plan",
    "run_chaos",
]
