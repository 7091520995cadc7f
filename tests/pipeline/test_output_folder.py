from __future__ import annotations

from pathlib import Path

import pytest

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.jobs.output_folder import require_own

REJECT = '{"reasons":["due has passed"],"input":"{}"}\n'
PARTS = {
    "_SUCCESS": "",
    "._SUCCESS.crc": "crc",
    "part-00000-1.json": "",
    "part-00001-1.json": REJECT + "{}",
    ".part-00001-1.json.crc": "crc",
}


def written(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("files", [{}, PARTS, {"_temporary": ""}])
def test_rejects_of_an_earlier_run_may_be_written_over(
    tmp_path: Path, files: dict[str, str]
) -> None:
    require_own(written(tmp_path / "bad", files), "rejects")
    require_own(tmp_path / "new", "rejects")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("thesis.txt", ""),
        ("part-00000-2.parquet", "PAR1"),
        ("rejects.json", REJECT),
        ("part-00000-2.json", '{"destination":"billing","body":"{}"}\n'),
        ("part-00000-2.json", '{"reasons":[],"input":"{}","more":1}\n'),
        ("part-00000-2.json", "[]\n"),
        ("part-00000-2.json", "\xff\n"),
    ],
)
def test_a_folder_with_anything_else_is_refused(tmp_path: Path, name: str, text: str) -> None:
    folder = written(tmp_path / "bad", PARTS | {name: text})

    with pytest.raises(ConfigurationError, match=f"holds '{name}'.* new or empty"):
        require_own(folder, "rejects")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(REJECT)

    for what in ("rejects", "verdicts"):
        with pytest.raises(ConfigurationError, match="is a file; name another"):
            require_own(path, what)
