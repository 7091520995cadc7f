"""The code of the pages runs as it stands there, and prints what the page shows."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from itertools import takewhile
from pathlib import Path

import click
import pytest

from chaos.forkserver_client import ForkServer
from tests.docs.pages import DOCS, FENCED, ROOT, Reader, blocks, commands, is_like
from timeoutmgr.cli.main import cli
from timeoutmgr.settings.file import configuration_from

EVERY = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
ARE_FOLLOWED_ELSEWHERE = {
    "nservicebus.md": "tests/native/test_conventional.py",
    "package-index.md": "tests/docs/pictures.py",
    "pipeline-jobs.md": "tests/pipeline/spark/test_pages.py",
    "test-your-code.md": "tests/testing/test_howto_test_your_code.py",
}
"""The test that runs the code of a page: with Spark, say, or with a broker of its own."""
ARE_NOT_FOLLOWED = {
    page.name for kind in ("cli", "pipeline") for page in (DOCS / "reference").glob(f"{kind}*.md")
}
"""Names, commands and options of their examples are checked below; `tests/cli/test_examples.py` and
the tests of the pipeline run them."""
FOLLOWED = [
    page
    for page in EVERY
    if page.name not in {*ARE_FOLLOWED_ELSEWHERE, *ARE_NOT_FOLLOWED}
    and next(blocks(page.read_text()), None)
]
SERVERS = {
    "amqp://guest:guest@localhost//": "rabbitmq_url",
    "amqp://guest:guest@localhost/%2F": "rabbitmq_url",  # as pika reads it
    "postgresql+psycopg://localhost/sales": "postgres_url",
}
"""URLs of pages, and the fixtures of the servers that take their place."""


def shown(page: Path) -> str:
    """Return the path of *page*, for the name of a test."""
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", FOLLOWED, ids=shown)
def test_a_reader_who_follows_the_page_sees_what_it_shows(
    page: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    unique: str,
    fork_server: ForkServer,
) -> None:
    text, name = page.read_text(), "sales"
    for url, fixture in SERVERS.items():
        if url in text:
            text = text.replace(url, request.getfixturevalue(fixture))
            name = unique
    text = text.replace("sales", name)
    reader = Reader(tmp_path, fork_server)
    try:
        for block in blocks(text):
            reader.follow(block)
    finally:
        reader.end()


@pytest.mark.parametrize("name", ARE_FOLLOWED_ELSEWHERE)
def test_a_page_that_is_followed_elsewhere_has_its_test(name: str) -> None:
    test = (ROOT / ARE_FOLLOWED_ELSEWHERE[name]).read_text()

    assert name in test or name.removesuffix(".md") in test


@pytest.mark.parametrize("page", EVERY, ids=shown)
def test_no_code_of_a_page_hides_from_its_reader(page: Path) -> None:
    text = page.read_text()

    fences = len(re.findall(r"^ *```\w", text, re.MULTILINE))
    plain = re.sub(r"    timeoutmgr .*\[OPTIONS\].*", "", FENCED.sub("", text))  # usage, in cli.md

    assert fences == len(list(blocks(text)))
    assert (
        re.findall(r"\n\n    (?:\$ )?(?:timeoutmgr|python|pip|pytest|import|from) .*", plain) == []
    )


@pytest.mark.parametrize("page", EVERY, ids=shown)
def test_the_settings_that_a_page_shows_are_accepted(page: Path, tmp_path: Path) -> None:
    for block in blocks(page.read_text()):
        if block.language == "toml" and block.title is None:
            path = tmp_path / f"{block.line}.toml"
            path.write_text(block.text)
            configuration_from(path, dict.fromkeys(re.findall(r"\$\{(\w+)\}", block.text), "x"))


@pytest.mark.parametrize("page", EVERY, ids=shown)
def test_the_names_that_the_code_of_a_page_imports_exist(page: Path) -> None:
    for block in blocks(page.read_text()):
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("timeoutmgr"):
                module = importlib.import_module(node.module or "")
                missing = [one.name for one in node.names if not hasattr(module, one.name)]
                assert missing == [], f"line {block.line}"


@pytest.mark.parametrize("page", EVERY, ids=shown)
def test_the_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    for block in blocks(page.read_text()):
        if block.language == "sh":
            lines = block.text.replace("\\\n", " ").splitlines()
        elif block.language == "console":
            lines = [command for command, _output in commands(block.text)]
        else:
            continue
        for line in lines:
            if line.startswith("timeoutmgr "):
                _parse(shlex.split(line.removesuffix(" &"), comments=True)[1:])


def _parse(words: list[str]) -> None:
    """Raise click.UsageError for a command or an option that does not exist."""
    words = list(takewhile(lambda word: not re.match(r"\d?[<>|]|.*;$", word), words))
    command: click.Command = cli
    context: click.Context | None = None
    while True:
        try:
            context = command.make_context(command.name, words, parent=context)
        except click.BadParameter:
            return  # a file that is not here, or a value that stands for another
        if not isinstance(command, click.Group):
            return
        words = [*context._protected_args, *context.args]
        _name, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found


def test_an_output_may_leave_lines_out_and_nothing_else() -> None:
    assert is_like("a ... c\n", "a b\n c\n")
    assert not is_like("a c\n", "a b c\n")
    assert not is_like("a\n", "a\nb\n")


def test_a_page_that_shows_another_output_fails(tmp_path: Path) -> None:
    page = "```python\nprint(1)\n```\n\n```text\n2\n```\n"

    reader = Reader(tmp_path)
    for block in blocks(page):
        reader.follow(block)

    with pytest.raises(AssertionError, match="line 6: got"):
        reader.end()
