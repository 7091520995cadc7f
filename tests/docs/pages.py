"""Pages of the documentation, followed as a reader follows them: from top to bottom.

| block | what the reader does |
|---|---|
| `title="shop.py"` | writes the file; a second block of that title goes on with it |
| `title="examples/flask/app.py"` | nothing: the block is a part of that file |
| `python` | goes on with the program; what was defined above is known |
| `text` | compares what the program printed since the `text` before |
| `console` | runs what follows `$`, and compares; `&` leaves a command running, `^C` ends it |
| `kill %1` | the same: ends the first command that was left running |
| `console title="examples/flask"` | the same, with the files of that folder at hand |
| `toml` | nothing; the test reads it as a settings file |
| `sh`, `sql` | nothing: it installs software, or needs servers; other tests run it |

`...` in an output stands for any text.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from chaos.forkserver_client import Child, ForkServer, Streams
from tests.support import forked_programs as forked
from tests.support.waiting import eventually

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
FENCED: Final = re.compile(
    r'^(?P<indent> *)```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n'
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
SHOWN: Final = ("json", "mermaid", "sql", "text", "toml")
NOT_RUN: Final = (
    *("pip install ", "createdb ", "make ", "python benchmarks/"),
    "rabbitmqctl set_policy ",  # tests/native has the broker and its policies
    "timeoutmgr pipeline reconcile --store /shared/",  # `make cluster` has the cluster
    "timeoutmgr top ",  # tests/cli/test_top.py has the terminal
)
"""Lines of `sh` blocks."""
LOOKS: Final = re.compile(
    r"timeoutmgr (?:--\S+ \S+ )*(?:list|show|status|doctor|errors list|errors show|recurring list"
    r"|deadletters list)"
)
"""Commands that change nothing: a reader repeats them until the worker has come so far."""
PATIENCE: Final = 60.0
_LONGEST: Final = 300.0
_SEPARATOR: Final = "=== the page shows the output until here ===\n"
_REDIRECTED: Final = re.compile(
    r"(?P<words>.*?)(?: > (?P<output>[\w./]+))?(?: 2> ?(?P<errors>[\w./]+)|(?P<both> 2>&1))?"
)
"""A command, and the files that a shell opens for it."""
_CRASH: Final = "Traceback (most recent call last)"
"""The first line of a program that an exception has ended at once."""
_LIKE: Final = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the line on which its text begins."""

    language: str
    title: str | None
    text: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page."""
    for match in FENCED.finditer(text):
        lines = match["text"].splitlines(keepends=True)
        body = "".join(line.removeprefix(match["indent"]) for line in lines)
        line = text.count("\n", 0, match.start("text")) + 1
        yield Block(match["language"], match["title"], body, line)


def is_like(expected: str, got: str) -> bool:
    """Return whether *got* is the *expected* output, in which `...` stands for any text."""
    return doctest.OutputChecker().check_output(f"{expected.strip()}\n", f"{got.strip()}\n", _LIKE)


Running = subprocess.Popen[bytes] | Child


@dataclass
class Reader:
    """A reader who types what a page shows, in a folder of the reader's own.

    With a *fork_server* programs in Python need no interpreter of their own, which would import the
    package each time.
    """

    folder: Path
    fork_server: ForkServer | None = None
    program: list[str] = field(default_factory=list)
    outputs: list[Block] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)

    def follow(self, block: Block) -> None:
        """Do what *block* shows; raise AssertionError if the outcome is not the page's."""
        place = f"line {block.line}"
        if block.language == "console":
            self.run_program()
            if block.title is not None:
                shutil.copytree(ROOT / block.title, self.folder, dirs_exist_ok=True)
            for command, expected in commands(block.text):
                self._type(command, expected, place)
        elif block.title is not None:
            self._write(block.title, block.text, place)
        elif block.language == "python":
            self.program.append(block.text)
        elif block.language == "text" and self.program:
            self.program.append(f"print({_SEPARATOR!r}, end='', flush=True)")
            self.outputs.append(block)
        elif block.language == "sh":
            lines = [line for line in block.text.replace("\\\n", "").splitlines() if line]
            assert all(line.startswith(NOT_RUN) for line in lines), f"{place} is not run"
        else:
            assert block.language in SHOWN, f"{place}: {block.language}"

    def run_program(self) -> None:
        """Run the program that the blocks so far make, if there is any."""
        if not self.program:
            return
        program, self.program = "\n".join(self.program), []
        expected, self.outputs = self.outputs, []
        log = self.folder / "log"
        log.write_text("")
        got, code = self._run(program, log)
        assert code == 0, f"{got}\n{log.read_text()}"
        for block, part in zip(expected, got.split(_SEPARATOR), strict=False):
            assert is_like(block.text, part), f"line {block.line}: got\n{part}"

    def end(self) -> None:
        """Run the last program, and end what still runs."""
        try:
            self.run_program()
        finally:
            for process in self.running:
                os.killpg(process.pid, signal.SIGTERM)
            for process in self.running:
                process.wait(PATIENCE)

    def _stop(self, process: Running) -> None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(PATIENCE)

    def _write(self, title: str, text: str, place: str) -> None:
        if title.startswith("examples/"):
            assert _plain(text) in _plain((ROOT / title).read_text()), f"{place} is not in {title}"
            return
        with (self.folder / title).open("a") as file:
            file.write(text)

    def _type(self, command: str, expected: str, place: str) -> None:
        if command == "kill %1":
            self._stop(self.running.pop(0))
        elif command.endswith(" &"):
            self.running.append(self._started(command.removesuffix(" &"), self.folder / "log"))
        elif expected.endswith("^C\n"):
            self._interrupt(command, expected.removesuffix("^C\n"), place)
        else:
            self._compare(command, expected, place)

    def _compare(self, command: str, expected: str, place: str) -> None:
        until = time.monotonic() + (PATIENCE if LOOKS.match(command) else 0)
        while True:
            got = self._printed(command)
            # A page that leaves its output out (`...`) is like any text.
            assert not got.startswith(_CRASH), f"{place}: {command} printed\n{got}"
            if is_like(expected, got):
                return
            assert time.monotonic() < until, f"{place}: {command} printed\n{got}"

    def _interrupt(self, command: str, expected: str, place: str) -> None:
        shown = self.folder / "shown"
        shown.write_text("")
        process = self._started(command, shown)

        def is_seen() -> bool:
            return is_like(f"{expected.rstrip()}...", shown.read_text())

        eventually(lambda: is_seen() or process.poll() is not None, f"{command} prints", PATIENCE)
        seen = is_seen()
        os.killpg(process.pid, signal.SIGINT)
        process.wait(PATIENCE)
        assert seen, f"{place}: {command} printed\n{shown.read_text()}"

    def _run(self, program: str, errors: Path) -> tuple[str, int]:
        """Run the text *program*; return what it printed, and its exit code."""
        if self.fork_server is not None:
            return self._forked(forked.TEXT, [program], errors)
        with errors.open("w") as file:
            return self._ended([sys.executable, "-W", "error::RuntimeWarning", "-c", program], file)

    def _printed(self, command: str) -> str:
        """Run *command* of a shell; return what it printed as output and errors."""
        if self.fork_server is not None and (found := forked.entry_of(command)) is not None:
            return self._forked(*found, None)[0]
        return self._ended(["bash", "-c", command], subprocess.STDOUT)[0]

    def _started(self, command: str, log: Path) -> Running:
        found = _REDIRECTED.fullmatch(command)
        assert found is not None
        entry = forked.entry_of(found["words"])
        if self.fork_server is None or entry is None:
            return self._started_by_a_shell(command, log)
        output = self._emptied(found["output"]) or log
        errors = output if found["both"] else self._emptied(found["errors"]) or log
        return self.fork_server.start(*entry, Streams(output, errors), environment(), self.folder)

    def _emptied(self, name: str | None) -> Path | None:
        """Return the file *name* without its content, as a shell opens it."""
        if name is None:
            return None
        path = self.folder / name
        path.write_text("")
        return path

    def _forked(self, entry: str, arguments: list[str], errors: Path | None) -> tuple[str, int]:
        assert self.fork_server is not None
        with tempfile.TemporaryDirectory() as aside:
            output = Path(aside, "output")
            child = self.fork_server.start(
                entry, arguments, Streams(output, errors), environment(), self.folder
            )
            try:
                code = child.wait(_LONGEST)
            finally:
                child.kill()  # no signal for a child that has ended
            return output.read_text(), code

    def _started_by_a_shell(self, command: str, output: Path) -> Running:
        with output.open("ab") as file:
            return subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=environment(),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _ended(self, words: list[str], errors: IO[str] | int) -> tuple[str, int]:
        ended = subprocess.run(
            words,
            cwd=self.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
        )
        return ended.stdout, ended.returncode


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a `console` block with the output below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.replace("\\\n", " ").partition("\n")
        yield command.strip(), output


def environment() -> dict[str, str]:
    """Return the environment of a reader, who has installed the package."""
    kept = {name: value for name, value in os.environ.items() if "TIMEOUTMGR" not in name}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    checkout = {"PYTHONPATH": str(ROOT)}  # for programs that no wheel has
    return kept | checkout | {"PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}


def _plain(text: str) -> str:
    """Return *text* without indentation: a part of a file may stand deeper there."""
    return "\n".join(line.strip() for line in text.strip().splitlines())
