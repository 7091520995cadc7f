"""Errors of the pipeline; for the tree of all errors see ``timeoutmgr.errors``."""

from collections.abc import Sequence

from timeoutmgr.errors import ConfigurationError, InvalidMessage, TimeoutManagerError


class PipelineUnavailable(ConfigurationError):
    """Spark, Java or a driver is missing; the message names the package to install."""


class RunConflict(ConfigurationError):
    """Another run is not finished, or has the same id and other parameters."""


class CommitConflict(RunConflict):
    """Another writer committed to a history table first; this commit added nothing."""


class WrongColumns(InvalidMessage):
    """A data set does not have the columns that a job needs; the job read no rows."""

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        super().__init__(f"{what}: {'; '.join(problems)}")
        self.problems = tuple(problems)


class TooManyRejects(InvalidMessage):
    """More rows than allowed cannot be scheduled; the run stored nothing."""

    def __init__(self, rejected: int, rows: int, allowed: float, reasons: Sequence[str]) -> None:
        super().__init__(
            f"{rejected} of {rows} rows cannot be scheduled, the limit is {allowed:.2%}; this "
            f"run stored nothing. The reasons: {', '.join(reasons)}. Fix the rows, or raise "
            "--max-reject-ratio"
        )
        self.rejected = rejected
        self.rows = rows


class ContentDiffers(TimeoutManagerError):
    """Rows to store have the ids of stored timeouts, but other contents."""

    def __init__(self, ids: Sequence[str], why: str) -> None:
        some = ", ".join(ids[:5])
        super().__init__(
            f"{len(ids)} rows are stored already, {why}: {some}{' …' if len(ids) > 5 else ''}; "
            "no row of their chunk was stored. Give the rows other keys, or load with "
            "on_conflict=ignore"
        )
        self.ids = tuple(ids)


class SnapshotEnded(TimeoutManagerError):
    """The snapshot of a read has ended, or the structure of a table that it covers has changed."""


class ArchiveMismatch(TimeoutManagerError):
    """Archived rows differ from the rows of the store; the job removed no more rows there."""


def require_extra(extra: str, what: str, *names: str) -> None:
    """Raise PipelineUnavailable if a module of *names*, which *what* needs, is missing."""
    for name in names:
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            raise PipelineUnavailable(
                f"{what} needs {name}, install it with: pip install 'timeoutmgr[{extra}]'"
            ) from error
