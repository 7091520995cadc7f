"""The migration of a run: a command that is killed, and resumed, aborted or started again."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from chaos.incidents import Incident
from chaos.plan import FaultKind
from chaos.supervisor import SupervisedProcess
from timeoutmgr.cli.exits import Exit

logger = logging.getLogger(__name__)

ABORTED: Final = 0.25
"""The share of interrupted migrations that are aborted."""
BETWEEN: Final = 0.1
"""Seconds between two incarnations."""
WHERE: Final = ("--to", "native")
HOW: Final = ("--safety-window", "1s", "--batch", "10")
"""Small batches: an incarnation does several. Timeouts due within a second stay."""


@dataclass(slots=True, kw_only=True)
class Migration(SupervisedProcess):
    """``timeoutmgr migrate`` of the endpoint *app*, one command after the other.

    Each incarnation is a command: mostly ``run``, which begins or resumes a migration, and
    sometimes ``abort`` after an interruption. After ``finish``, it starts again only until a
    ``run`` has ended.
    """

    app: str
    seed: int
    _chance: Random = field(init=False)
    _command: str = field(init=False, default="run")
    _is_finishing: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Let the seed choose the incarnations that abort."""
        self._chance = Random(f"{self.seed} migration")

    def start(self) -> None:
        """Start the next incarnation."""
        more = HOW if self._command == "run" else ()
        self.arguments = ["--app", self.app, "migrate", self._command, *WHERE, *more]
        SupervisedProcess.start(self)

    def kill(self) -> list[Incident]:
        """Kill it as a crash would; the next incarnation resumes or aborts; return incidents."""
        if self.code is not None:
            return []
        self._command = self._next(None)
        return [
            replace(one, kind=FaultKind.KILL_MIGRATION) if one.kind is FaultKind.KILL else one
            for one in SupervisedProcess.kill(self)
        ]

    def supervise(self) -> list[Incident]:
        """Start the next incarnation when the present process has ended."""
        if self.is_finished or self.code is None:
            return []
        if self._restart_at is None:
            logger.info("%s (%s) ended with code %s", self.incarnation, self._command, self.code)
            self._restart_at = time.monotonic() + BETWEEN
        elif time.monotonic() >= self._restart_at:
            self._command = self._next(self.code)
            self.start()
        return []

    def finish(self) -> None:
        """Start no further command after a ``run`` has ended."""
        self._is_finishing = True

    @property
    def is_finished(self) -> bool:
        """Whether ``finish`` was called, and the last run has ended."""
        return self._is_finishing and self._command == "run" and self.code == Exit.OK

    def _next(self, code: int | None) -> str:
        # Refused: an abort of the open migration has begun, and must finish first.
        if self._command == "run" and code == Exit.CONFIGURATION:
            return "abort"
        if self._is_finishing or code == Exit.OK:
            return "run"
        return "abort" if self._chance.random() < ABORTED else "run"
