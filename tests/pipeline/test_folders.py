from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.main import cli
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.folders import folder_option


@pytest.mark.parametrize(
    "value",
    [
        *("s3a://lake/h", "S3A://lake/h", "hdfs://name:9000/h", "file:///lake/h", "gs:/lake"),
        *(Path("s3a://lake/h"), Path("abfss://c@a.dfs.core.windows.net/h"), "view-fs+x.1://h"),
    ],
)
def test_a_url_is_no_folder(value: str | Path) -> None:
    with pytest.raises(ConfigurationError, match=r"to is a folder .* mount it"):
        folder_option("to", value)


@pytest.mark.parametrize(
    "value", ["", ".", "/lake/h", "lake/s3a", "C:/lake", "c:\\lake", "a b:/c", "2024-01:/x", "ü:/"]
)
def test_a_path_is_a_folder(value: str) -> None:
    assert folder_option("to", value) == folder_option("to", Path(value)) == Path(value)


def test_history_is_not_archived_into_a_folder_that_looks_like_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("pipeline", "archive", "--to", "s3a://lake/h", "--older-than", "7d")

    ended = CliRunner().invoke(cli, ["--json", *words])

    assert ended.exit_code == Exit.CONFIGURATION, ended.output
    assert "--to is a folder" in json.loads(ended.stdout or ended.stderr)["error"]
    assert list(tmp_path.iterdir()) == []
