"""Movers: processes that move batches of one run concurrently, for the process that holds it.

The ledger decides which process moves which batch, so a mover only asks for the next batch. Two
movers never have the same batch, and the claim of a mover ends with its process.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Final, Self, TypeAlias

from timeoutmgr.errors import (
    ConfigurationError,
    MigrationFailed,
    StorageUnavailable,
    TimeoutManagerError,
    TransportUnavailable,
)
from timeoutmgr.migration.batch_step import claim_next_batch, move
from timeoutmgr.migration.ports import StepInputs
from timeoutmgr.migration.runs import Batch, MigrationRun

logger = logging.getLogger(__name__)

Opener: TypeAlias = Callable[[], AbstractContextManager[StepInputs]]
"""Opens source, target and ledger, with connections of the calling process. It is pickled, so it
contains names, settings and text, but nothing open."""

_SPAWN: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Movers:
    """*count* processes; each uses the places that *opener* opens there."""

    count: int
    opener: Opener

    def __post_init__(self) -> None:
        """Check the count."""
        if self.count < 1:
            raise ConfigurationError(f"processes must be at least 1, got {self.count}")

    def move(self, run: MigrationRun, left: int, on_batch: Callable[[Batch], None]) -> None:
        """Let the processes move all batches that can be claimed; return when all have ended.

        No more processes start than batches are *left*. A killed process leaves its batch open, for
        the holder of the run. Once all have ended, the first error of a process is raised:
        StorageUnavailable or TransportUnavailable for an outage, else MigrationFailed.
        """
        count = min(self.count, left)
        with self._started(count, run) as processes:
            errors = [found for found in _answers(processes, run, on_batch) if found is not None]
        if errors:
            raise errors[0].kind(
                f"{len(errors)} of {count} processes of run {run.id} ended: {errors[0].sentence}"
            )

    @contextmanager
    def _started(self, count: int, run: MigrationRun) -> Iterator[dict[Connection, SpawnProcess]]:
        """Yield *count* processes by the pipes of their answers; end remaining processes."""
        started = {}
        try:
            for _ in range(count):
                ours, theirs = _SPAWN.Pipe(duplex=False)
                process = _SPAWN.Process(target=_work, args=(self.opener, run, theirs), daemon=True)
                with _without_interrupts():
                    process.start()
                theirs.close()
                started[ours] = process
            yield started
        finally:
            for process in started.values():
                process.terminate()
                process.join()


@dataclass(frozen=True, slots=True)
class MoverError:
    """The error that ended a mover, for the holder to raise: not every error can be pickled."""

    kind: type[TimeoutManagerError]
    sentence: str

    @classmethod
    def of(cls, error: TimeoutManagerError) -> Self:
        """Return *error* as an outage if it is one."""
        outages = (StorageUnavailable, TransportUnavailable)
        kind = next((one for one in outages if isinstance(error, one)), MigrationFailed)
        return cls(kind, f"{type(error).__name__}: {error}")


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Shield processes started in the block from SIGINT; this process gets it after the block.

    A terminal interrupts all processes of a command at once, and the holder ends its movers.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answers(
    processes: dict[Connection, SpawnProcess], run: MigrationRun, on_batch: Callable[[Batch], None]
) -> Iterator[MoverError | None]:
    """Yield the error of each process, or None, as it ends; pass on each batch that is moved."""
    answering = dict(processes)
    while answering:
        for pipe in wait(list(answering)):
            assert isinstance(pipe, Connection)
            try:
                found = pipe.recv()
            except (EOFError, OSError):  # killed between two answers, or within one
                process = answering.pop(pipe)
                process.join()
                logger.warning(
                    "process %d of migration run %s ended with code %s; its batch is moved at "
                    "the end",
                    process.pid,
                    run.id,
                    process.exitcode,
                    extra={"event": "mover_ended", "endpoint": run.terms.endpoint},
                )
                continue
            if isinstance(found, Batch):
                on_batch(found)
            else:
                answering.pop(pipe).join()
                yield found


def _work(opener: Opener, run: MigrationRun, answers: Connection) -> None:
    """Move batches until none is left or the holder has ended; send each, then the end."""
    with answers, suppress(BrokenPipeError):  # the holder has ended: nobody reads an answer
        answers.send(move_batches(opener, run, answers.send))


def move_batches(
    opener: Opener, run: MigrationRun, on_batch: Callable[[Batch], None]
) -> MoverError | None:
    """Move batches until none is left or the holder has ended; return the error that ended it."""
    holder = multiprocessing.parent_process()
    try:
        with opener() as parts:
            while holder is None or holder.is_alive():
                batch = move_next(parts, run)
                if batch is None:
                    break
                on_batch(batch)
    except TimeoutManagerError as error:
        return MoverError.of(error)
    return None


def move_next(parts: StepInputs, run: MigrationRun) -> Batch | None:
    """Move the first batch that is not claimed; return None if none is left."""
    batch = claim_next_batch(parts, run)
    if batch is None:
        return None
    try:
        return move(parts, run, batch)
    except TimeoutManagerError:
        # Otherwise all other movers would try it, too; without the ledger they cannot.
        with suppress(StorageUnavailable):
            parts.ledger.set_aside(run, batch)
        raise
