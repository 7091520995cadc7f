"""A shop of an example as a user runs it: a web server and a worker, in processes of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.cli.programs import PATIENCE, Program, environment, wait_until
from tests.support.examples import EXAMPLES

_ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Shop:
    """The project in ``examples/<name>``, with *variables* in its environment."""

    def __init__(self, name: str, **variables: str) -> None:
        self._folder: Final[Path] = EXAMPLES / name
        self._variables: Final[Mapping[str, str]] = {"REMINDER_SECONDS": "1", **variables}
        self._started: list[Program] = []
        self._url = ""

    def run(self, *arguments: str) -> str:
        """Run a command of the project, and return its output; it must succeed."""
        answer = subprocess.run(
            [sys.executable, *arguments],
            cwd=self._folder,
            env=self._environment(),
            capture_output=True,
            text=True,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    def start(self, *arguments: str) -> Program:
        """Start a program of the project."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self._folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        program = Program(process, process.stdout, process.stderr)
        self._started.append(program)
        return program

    def serve(self, *arguments: str) -> Program:
        """Start the web server on a free port, which it prints."""
        program = self.start(*arguments)

        def is_bound() -> bool:
            found = _ADDRESS.search("\n".join([*program.out, *program.err]))
            self._url = found.group(0) if found else ""
            return found is not None or program.process.poll() is not None

        wait_until(is_bound, "the web server prints its address")
        assert self._url, [*program.out, *program.err]
        return program

    def order(self, number: str, card: str = "good") -> int:
        """Order by a request; return the status of the answer."""
        body = json.dumps({"number": number, "card": card}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/orders", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def reminders(self) -> list[str]:
        """Return the numbers of the orders that the handler has reminded of."""
        with urllib.request.urlopen(f"{self._url}/reminders", timeout=PATIENCE) as answer:
            found: Any = json.loads(answer.read())
        return list(found["reminders"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for program in self._started:
            if program.process.poll() is None:
                program.process.kill()
            program.wait()

    def _environment(self) -> dict[str, str]:
        path = str(EXAMPLES.parent)
        return environment(PYTHONPATH=path, PYTHONUNBUFFERED="1", **self._variables)


def check_orders(shop: Shop, worker: Program, *, at_once: int = 0) -> None:
    """Order three times; a declined card undoes the second order, and its reminder with it.

    All reminders are due after the same delay, so that the second would come before the third.
    Before that, four browsers order *at_once* times, while the worker writes too.
    """
    worker.wait_for(" runs (")
    numbers = [f"B{number}" for number in range(at_once)]

    with ThreadPoolExecutor(4) as browsers:
        assert list(browsers.map(shop.order, numbers)) == [201] * at_once
    assert shop.order("A7") == 201
    assert shop.order("A8", card="declined") == 402
    assert shop.order("A9") == 201

    expected = sorted([*numbers, "A7", "A9"])
    wait_until(
        lambda: {*shop.reminders()} >= {*expected}, "the worker has handled the last reminder"
    )
    assert sorted(shop.reminders()) == expected
    assert worker.stop() == 0, worker.err
    assert [line for line in worker.err if "locked" in line] == []
