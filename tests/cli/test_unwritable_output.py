"""Standard output that is closed or full: a sentence and an exit code, and no traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from chaos.forkserver_client import ForkServer
from tests.cli.conftest import SETTINGS
from tests.cli.programs import PATIENCE, Folder, environment

FULL = "> /dev/full"
SENTENCE = (
    "error: the output cannot be written: No space left on device; the command may have done its "
    "work by then, so check before you repeat it\n"
)


def in_shell(
    folder: Folder, words: str, streams: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell that redirects its *streams*."""
    return subprocess.run(
        f"{shlex.quote(sys.executable)} -m timeoutmgr {words} {streams}",
        shell=True,
        cwd=folder.path,
        env={**environment(**folder.variables), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Folder]:
    """An endpoint for all tests: one of them sends a message, and no other changes anything."""
    made = Folder(tmp_path_factory.mktemp("installed"), "shop", fork_server)
    made.write("timeoutmgr.toml", SETTINGS.format(endpoint="shop"))
    assert made.run("install").returncode == 0
    yield made
    made.close()


@pytest.mark.parametrize("words", ["status", "list", "--json list"])
def test_a_command_without_standard_output_does_its_work(installed: Folder, words: str) -> None:
    ended = in_shell(installed, words, ">&-")

    assert (ended.returncode, ended.stderr) == (0, "")


def test_top_without_standard_output_needs_a_terminal(installed: Folder) -> None:
    ended = in_shell(installed, "top", ">&-")

    assert ended.returncode == 2
    assert "error: top needs a terminal" in ended.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", ["list", "--json list", "--help"])
def test_full_output_is_one_error_line(installed: Folder, words: str, unbuffered: str) -> None:
    ended = in_shell(installed, words, FULL, PYTHONUNBUFFERED=unbuffered)

    assert (ended.returncode, ended.stderr) == (1, SENTENCE)


def test_a_message_whose_report_cannot_be_written_is_durable(installed: Folder) -> None:
    ended = in_shell(installed, f"send {installed.endpoint} T '{{}}'", FULL)

    assert (ended.returncode, ended.stderr) == (1, SENTENCE)
    queues = installed.run("--json", "status").json()["queues"]
    assert queues[installed.endpoint] == 1


@pytest.mark.parametrize("words", ["--json send nowhere T '{}'", "send nowhere T '{}'"])
def test_an_error_that_full_output_refuses_is_on_standard_error(
    installed: Folder, words: str
) -> None:
    ended = in_shell(installed, words, FULL)

    assert ended.returncode == 3
    assert ended.stderr.startswith("error: there is no queue 'nowhere'")
    assert "Traceback" not in ended.stderr


def test_full_output_and_full_errors_end_with_an_exit_code(installed: Folder) -> None:
    assert in_shell(installed, "list", "> /dev/full 2> /dev/full").returncode == 1


@pytest.mark.parametrize("words", ["list", "--json send nowhere T '{}'"])
def test_a_reader_that_has_left_is_no_traceback(installed: Folder, words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "timeoutmgr", *shlex.split(words)],
            cwd=installed.path,
            env=environment(**installed.variables),
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    assert ended.returncode in (1, 3)
    assert "Traceback" not in ended.stderr
