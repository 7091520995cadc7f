"""An export is saved whole, or is no file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits import no_room_beyond
from timeoutmgr.cli.migrate.shared import save_report
from timeoutmgr.cli.written_files import Unwritten, export_to, written_whole
from timeoutmgr.errors import ConfigurationError


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


def write(path: Path, page: str) -> None:
    """Write a page."""
    with written_whole(path) as file:
        file.write(page)


def save(path: Path, documents: list[dict[str, Any]]) -> None:
    """Save a report; raise the error that the command writes to standard error."""
    if not save_report(path, documents):
        raise ConfigurationError("File too large")


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(
    "fill",
    [
        lambda path: write(path, "<p>" * 2_000),
        lambda path: save(path, [{"number": n} for n in range(2_000)]),
    ],
    ids=["page", "report"],
)
def test_a_file_that_has_no_room_is_removed(
    tmp_path: Path, fill: Callable[[Path], object], is_new: bool
) -> None:
    path = tmp_path / "out"
    if not is_new:
        path.write_text("of yesterday")

    with no_room_beyond(4_096), pytest.raises(ConfigurationError, match="File too large"):
        fill(path)

    assert not path.exists()
