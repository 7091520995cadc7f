"""The critical error of a database clock and a host clock that differ too much."""

from timeoutmgr.resilience.critical import CriticalErrors


def report_clock_offset(critical: CriticalErrors, seconds: float) -> None:
    """Raise the critical error: the clocks differ by *seconds*."""
    critical.raise_error(
        f"The database's clock differs from this host's by {seconds:.0f} s: due times that are "
        "made here are wrong by as much. Set the clocks.",
        RuntimeError(f"clock offset {seconds:.0f} s"),
    )
