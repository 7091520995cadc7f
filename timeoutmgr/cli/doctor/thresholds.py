"""Limits beyond which ``doctor`` and ``status`` fail."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import click

from timeoutmgr.cli.options import Duration, bundled, option

MAX_OVERDUE: Final = timedelta(seconds=60)
MAX_UNSTORED: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Tolerated amount of each fault.

    *min_processes* is None for "a process, as soon as timeouts or messages wait for it".
    """

    max_overdue: timedelta = MAX_OVERDUE
    max_errors: int = 0
    max_unstored: int = MAX_UNSTORED
    min_processes: int | None = None


thresholds: Final = bundled(
    "limits",
    Thresholds,
    option(
        "--max-overdue",
        type=Duration(),
        default=f"{MAX_OVERDUE.seconds}s",
        show_default=True,
        help="Time by which a timeout may be overdue: 90, 2m, 1h30m, PT2M.",
    ),
    option(
        "--max-errors",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Number of messages that may lie in the error queue.",
    ),
    option(
        "--max-unstored",
        type=click.IntRange(min=0),
        default=MAX_UNSTORED,
        show_default=True,
        help="Number of messages that may wait to be stored while a process lives.",
    ),
    option(
        "--min-processes",
        type=click.IntRange(min=0),
        help="Number of processes that must live. Without it: 1, if timeouts or messages wait.",
    ),
)
"""Add the options of the limits; the command gets them as ``limits``."""
