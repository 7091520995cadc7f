"""An export is saved whole, or is no file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from timeoutmgr.cli.written_files import Unwritten, export_to


def _disk_full(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_export_that_a_full_disk_cuts_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    monkeypatch.setattr(os, "fsync", _disk_full)

    with pytest.raises(Unwritten) as cut, export_to(path) as export:
        export.write({"id": "1"})

    assert f"--output {path} cannot be written to its end (No space left" in str(cut.value)
    assert not path.exists()


def test_a_saved_export_stays_whatever_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"

    with export_to(path) as export:
        export.write({"id": "1"})
        export.save()
        monkeypatch.setattr(os, "fsync", _disk_full)

    assert path.read_text() == '{"id": "1"}\n'
