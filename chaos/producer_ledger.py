"""The producers' ledger: each step of a send or cancel is on disk before the next."""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from timeoutmgr.contracts import CancelResult
from timeoutmgr.message.instants import Micros


class Fate(StrEnum):
    """Required end of a message."""

    DELIVERED = "delivered"
    NOT_DELIVERED = "not_delivered"
    """It was cancelled, and the answer promised that it will not be delivered."""
    DEAD = "dead"
    """Its destination does not exist, and it leaves a dead letter."""
    FAILED = "failed"
    """Its handler always fails: it must be in the error queue, without an effect."""
    EITHER = "either"
    """The answer of a send or of a cancel was lost, or says that it may have been sent."""


@dataclass(slots=True, kw_only=True)
class Promise:
    """One message; instants of the producer's clock. *unclear* are sends without an answer.

    *dies*: the destination does not exist. *fails*: its handler always fails. *natively*: the
    sender uses RabbitMQ's delay levels, which do not recognise an id: a message that is sent twice
    arrives twice. *by* is the incarnation of the sender, *since* the time of its first attempt. A
    follower is sent on the arrival of the message *after*.
    """

    name: str
    due: Micros
    dies: bool = False
    fails: bool = False
    natively: bool = False
    by: str = ""
    since: Micros = 0
    after: str | None = None
    accepted: bool = False
    accepted_at: Micros = 0
    unclear: list[Micros] = field(default_factory=list)
    cancelling: bool = False
    cancel: str | None = None
    cancel_unclear: bool = False

    @property
    def fate(self) -> Fate:
        """Required end of the message."""
        if not self.accepted:
            return Fate.EITHER
        if self.dies:
            return Fate.DEAD
        if not self.cancelling or self.cancel == CancelResult.TOO_LATE:
            return Fate.FAILED if self.fails else Fate.DELIVERED
        if self.cancel in (CancelResult.CANCELLED, CancelResult.WILL_BE_CANCELLED):
            # Will be cancelled: the message is under way, and is dropped on arrival.
            return Fate.NOT_DELIVERED
        return Fate.EITHER


class ProducerLedgerWriter:
    """Written by one producer: a line for each step, before the step or right after it.

    The file is synced after every *sync_every* accepted messages, and at the end.
    """

    def __init__(self, path: Path, *, sync_every: int = 1) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._sync_every = sync_every
        self._unsynced = 0

    def trying(
        self,
        name: str,
        due: Micros,
        *,
        dies: bool = False,
        fails: bool = False,
        natively: bool = False,
        by: str = "",
        after: str | None = None,
    ) -> None:
        """Record a coming send: from here on the message may be delivered, or dead."""
        since = time.time_ns() // 1_000
        who = {"natively": natively, "by": by, "since": since, "after": after}
        self._add(step="trying", name=name, due=due, dies=dies, fails=fails, **who)

    def unclear(self, name: str, at: Micros) -> None:
        """Record a send without an answer."""
        self._add(step="unclear", name=name, at=at)

    def accepted(self, name: str, at: Micros) -> None:
        """Record a send that returned: from here on the message must be delivered."""
        self._add(step="accepted", name=name, at=at)
        self._unsynced += 1
        if self._unsynced >= self._sync_every:
            os.fsync(self._file.fileno())
            self._unsynced = 0

    def cancelling(self, name: str) -> None:
        """Record a coming cancel."""
        self._add(step="cancelling", name=name)

    def cancel_unclear(self, name: str) -> None:
        """Record a cancel without an answer."""
        self._add(step="cancel_unclear", name=name)

    def answered(self, name: str, answer: CancelResult) -> None:
        """Record the answer of a cancel."""
        self._add(step="answered", name=name, answer=answer.value)

    def close(self) -> None:
        """Sync and close the file."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _add(self, **line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


class ProducerLedger:
    """All promises of a run, read from the producers' files as they grow."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._read_until = dict.fromkeys(paths, 0)
        self.by_name: dict[str, Promise] = {}

    def read(self) -> dict[str, Promise]:
        """Return all promises by name; leave an unfinished line for the next call."""
        for path, start in self._read_until.items():
            if path.exists():
                self._read_until[path] = self._read_file(path, start)
        return self.by_name

    def _read_file(self, path: Path, start: int) -> int:
        with path.open("rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                start += len(line)
                self._apply(json.loads(line))
        return start

    def _apply(self, line: dict[str, Any]) -> None:
        name = line["name"]
        if line["step"] == "trying":
            self.by_name[name] = Promise(**{key: line[key] for key in line if key != "step"})
            return
        promise = self.by_name[name]
        match line["step"]:
            case "unclear":
                promise.unclear.append(line["at"])
            case "accepted":
                promise.accepted = True
                promise.accepted_at = line["at"]
            case "cancelling":
                promise.cancelling = True
            case "cancel_unclear":
                promise.cancel_unclear = True
            case "answered":
                promise.cancel = line["answer"]
