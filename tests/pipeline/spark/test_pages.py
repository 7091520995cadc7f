"""The page pipeline-jobs.md is followed, on the one Spark of these tests."""

from __future__ import annotations

import contextlib
import io
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.docs.pages import DOCS, Reader, blocks
from timeoutmgr.cli.main import cli

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ReaderInProcess(Reader):
    """A reader whose commands and programs run here, beside a Spark that is started."""

    def _ended(self, words: list[str], errors: Any) -> tuple[str, int]:
        code = words[-1]
        if code.startswith("timeoutmgr "):
            # Spark's JVM began in another folder, from which it would look for paths.
            given = [
                str(path) if (path := self.folder / word).exists() else word
                for word in shlex.split(code)
            ]
            ended = CliRunner().invoke(cli, given[1:])
            return ended.output, ended.exit_code
        if words[0] == "bash":
            return super()._ended(words, errors)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, "page", "exec"), {})
        return said.getvalue(), 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["how-to/pipeline-jobs.md"])
def test_a_reader_who_follows_the_page_sees_what_it_shows(
    spark: SparkSession, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader, url = ReaderInProcess(tmp_path), f"sqlite:///{tmp_path}/timeoutmgr.db"
    named = 'endpoint = "billing"\n'  # Spark's workers began in another folder, too
    text = (DOCS / name).read_text()
    text = text.replace(named, f'{named}transport = "{url}"\npersistence = "{url}"\n')
    try:
        for block in blocks(text):
            reader.follow(block)
    finally:
        reader.end()
