"""How far each stream has read a store, in the store's ledger: archive removes nothing beyond.

A stream has one row of ``runs`` for its folder and checkpoint, from before it first begins until it
is given up, also while no process follows it. The row's report holds the low-water mark: every
event of a transaction before ``xid`` is in the stream's folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection

from timeoutmgr.pipeline.errors import RunInTheWay
from timeoutmgr.pipeline.jobs.running import Progress, silent
from timeoutmgr.pipeline.ledger import Ledger, Run, RunState

KIND: Final = "stream"
_NOTHING: Final[Mapping[str, Any]] = {"xid": 0, "query": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMark:
    """A stream into the folder *to* has read all transactions before *xid*."""

    to: str
    checkpoint: str
    xid: int

    def described(self) -> str:
        """Return which stream it is, and how it is given up."""
        return (
            f"the stream into {self.to}, which is at transaction {self.xid} (a stream that nobody "
            f"goes on with: `timeoutmgr pipeline stream --to {self.to} --checkpoint "
            f"{self.checkpoint} --abort`)"
        )


class StreamRuns:
    """The streams of the store that has *ledger*."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def begin(self, to: Path, checkpoint: Path, progress: Progress = silent) -> str:
        """Return the run id of the stream; from here on archive keeps what it has not read."""
        run_id = _run_id(to, checkpoint)
        run = self._ledger.begin(run_id, KIND, {"to": str(to), "checkpoint": str(checkpoint)})
        if run.state is RunState.ABORTED:
            self._ledger.note(run_id, _NOTHING)
            self._ledger.move(run_id, RunState.RUNNING)
            progress(
                "this stream was given up: events that archive has removed since then are not in "
                f"{to}"
            )
        return run_id

    def recognise(self, run_id: str, query: str) -> None:
        """Note by which id Spark knows the stream: its checkpoint has that id for good.

        Raises RunInTheWay where the mark is that of another checkpoint of the same name.
        """
        run = self._ledger.find(run_id)
        assert run is not None, "the stream was begun"
        known = _report(run)
        if known["query"] not in (None, query):
            raise RunInTheWay(
                f"the ledger has a stream into {run.parameters['to']} with a checkpoint "
                f"{run.parameters['checkpoint']}, and this checkpoint is another: it was begun "
                "anew, or lies on another machine. Name another folder and checkpoint; if the "
                "first stream is over, give it up by the same command with --abort"
            )
        self._ledger.note(run_id, {**known, "query": query})

    def reached(self, run_id: str, xid: int) -> None:
        """Note that the stream's folder has all events of transactions before *xid*."""
        run = self._ledger.find(run_id)
        assert run is not None, "the stream was begun"
        self._ledger.note(run_id, {**_report(run), "xid": xid})

    def abort(self, to: Path, checkpoint: Path) -> bool:
        """Give a stream up: archive waits for it no longer; return whether there was such a one."""
        run = self._ledger.find(_run_id(to, checkpoint))
        if run is None or run.state.is_over:
            return False
        self._ledger.move(run.run_id, RunState.ABORTED)
        return True

    def low_water(self, connection: Connection) -> StreamMark | None:
        """Return the mark of the stream that is furthest behind; None where there is no stream."""
        marks = [
            StreamMark(
                to=run.parameters["to"],
                checkpoint=run.parameters["checkpoint"],
                xid=_report(run)["xid"],
            )
            for run in self._ledger.runs_within(connection, KIND, RunState.RUNNING)
        ]
        return min(marks, key=lambda mark: mark.xid, default=None)


def _run_id(to: Path, checkpoint: Path) -> str:
    digest = sha256(f"{to}\0{checkpoint}".encode()).hexdigest()
    return f"{KIND}-{digest[:16]}"


def _report(run: Run) -> Mapping[str, Any]:
    return _NOTHING if run.report is None else run.report
