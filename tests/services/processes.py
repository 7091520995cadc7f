"""Start, stop and find processes that outlive the worker that started them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services.run import RUN_VARIABLE


class DidNotStart(Exception):
    """A program ended, or did not answer in time; the end of its output is in the message."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process by number and start time, since numbers are used again."""

    pid: int
    born: str

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; an entry of an ended process, before its wait, does not count."""
        _reap(self.pid)
        state = _stat(self.pid)
        if state is None or state[1] != self.born:
            return False
        if state[0] == "Z":
            # It ended between the two reads. PostgreSQL takes a process with an entry for alive,
            # and then does not start beside it.
            _reap(self.pid)
            return False
        return True


def spawn(
    command: Sequence[str],
    *,
    folder: Path,
    output: Path,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Process:
    """Start *command* as the head of a process group of its own, output to a file."""
    with output.open("ab") as sink:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    # It ends long after this object: `Process.is_alive` waits for it, or the system does.
    child.returncode = 0
    state = _stat(child.pid)
    return Process(child.pid, state[1] if state else "")


def wait_until(
    answers: Callable[[], bool], process: Process, *, seconds: float, output: Path
) -> None:
    """Return when *answers* is true; raise DidNotStart if *process* ends before, or time does."""
    deadline = time.monotonic() + seconds
    while not answers():
        if not process.is_alive or time.monotonic() > deadline:
            tail = output.read_text(errors="replace")[-1500:] if output.exists() else ""
            raise DidNotStart(f"no answer from process {process.pid}; its output ends: {tail}")
        _ended_within(process, 0.05)


def stop(process: Process, ask: signal.Signals, *, seconds: float = 20) -> None:
    """End *process* by *ask*, and its whole group by SIGKILL when that takes too long."""
    if not process.is_alive:
        return
    os.kill(process.pid, ask)
    if not _ended_within(process, seconds):
        kill(process)


def send_to_family(process: Process, number: signal.Signals) -> None:
    """Send a signal to *process* and to all that it started, the eldest first."""
    signalled: set[int] = set()
    # Again until no process is new: a server starts children until the signal reaches it.
    while new := [pid for pid in _family(process.pid) if pid not in signalled]:
        signalled.update(new)
        for pid in new:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue  # it has ended meanwhile


def kill(process: Process) -> None:
    """End *process* and its group by SIGKILL, and return when it is gone."""
    if not process.is_alive:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    if not _ended_within(process, 20):
        raise RuntimeError(f"process {process.pid} is still there after SIGKILL")


def free_port() -> int:
    """Return a port of 127.0.0.1 without a listener at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Whether a server accepts connections on *port* of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def left_behind(folder: Path, *, seconds: float = 3) -> list[str]:
    """Return the command lines of processes of the run in *folder* that do not end by themselves.

    Only where there is a /proc; elsewhere nothing is known and nothing is said.
    """
    deadline = time.monotonic() + seconds
    while (found := _marked(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)  # an ending process may not be our child and sends no signal
    return found


def _marked(folder: Path) -> list[str]:
    variable = f"{RUN_VARIABLE}={folder}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if entry.name == str(os.getpid()):
            continue
        try:
            marked = variable in (entry / "environ").read_bytes().split(b"\0")
            words = (entry / "cmdline").read_bytes().split(b"\0") if marked else []
        except OSError:  # gone meanwhile, or another user's
            continue
        if marked and not _ends_with_its_parent(words):
            found.append(f"{entry.name}: {b' '.join(words).decode(errors='replace')[:200]}")
    return found


def _ends_with_its_parent(words: list[bytes]) -> bool:
    """Whether it is the process that multiprocessing keeps beside a process that spawns others."""
    return any(b"multiprocessing.resource_tracker" in word for word in words)


def _ended_within(process: Process, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.is_alive:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        time.sleep(min(0.02, remaining))  # a process that is not our child sends no signal
    return True


def _stat(pid: int) -> tuple[str, str] | None:
    """Return state and start time of *pid*."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]


def _family(pid: int) -> list[int]:
    """Return *pid* with its descendants; a group would not do: PostgreSQL's are no part of it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended meanwhile
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # another worker started it
