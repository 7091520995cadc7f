"""A chaos run: worker processes die, hang and lose connections while messages keep coming.

Run ``python -m chaos --help``, or call :func:`run_chaos`. A run ends with a verdict, which
compares accepted with delivered messages, and names each broken promise.
"""

from chaos.judge import JudgeVerdict, Migrated, Percentiles
from chaos.plan import Fault, FaultKind, plan
from chaos.processes import ChaosFailed
from chaos.run import run_chaos
from chaos.settings import ChaosSettings

__all__ = [
    "ChaosFailed",
    "ChaosSettings",
    "Fault",
    "FaultKind",
    "JudgeVerdict",
    "Migrated",
    "Percentiles",
    "plan",
    "run_chaos",
]
