"""Programs in processes of their own, which a fork server starts: no interpreter begins anew."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from chaos.forkserver_client import Child, ForkServer, Streams
from tests.support.forked_programs import PROGRAM

PATIENCE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Forked:
    """A program that runs, with its pipes."""

    child: Child
    stdin: TextIO
    stdout: TextIO

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        self.child.kill()
        self.child.wait(PATIENCE)


@contextmanager
def forked(fork_server: ForkServer, program: str, *arguments: str) -> Iterator[Forked]:
    """Run a *program* as ``python -c`` does; when its input ends it has to end, too."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [Path(folder, name) for name in ("in", "out")]
        for pipe in pipes:
            os.mkfifo(pipe)
        streams = Streams(pipes[1], _errors(), pipes[0])
        child = fork_server.start(PROGRAM, [*arguments, program], streams, {})
        try:
            with pipes[0].open("w") as stdin, pipes[1].open() as stdout:
                yield Forked(child, stdin, stdout)
        except BaseException:
            child.kill()
            raise
        finally:
            child.wait(PATIENCE)


def start(
    fork_server: ForkServer,
    program: str,
    *arguments: str,
    output: Path = Path(os.devnull),
    variables: Mapping[str, str] | None = None,
) -> Child:
    """Start a *program* as ``python -c`` does, without input."""
    streams = Streams(output, _errors())
    return fork_server.start(PROGRAM, [*arguments, program], streams, variables or {})


def _errors() -> Path:
    """Return the standard error of this process, which a failed test shows."""
    return Path(f"/proc/{os.getpid()}/fd/2")
