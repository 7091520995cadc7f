"""The parts of an archive that need no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.archives import publish
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.errors import RunConflict
from timeoutmgr.pipeline.jobs.archived import Archive, ArchiveOwner

MANIFEST = {
    **{"run_id": "old", "store": "sqlite:////x/a.db timeout_history", "cutoff": 17},
    **{"rows": 1, "checksum": "-3", "files": ["data/run=old/part-0.parquet"]},
}
ROWS = [(1, "a", 1_709_251_200_000_001), (2, "ü", 1_709_251_200_000_002)]
OURS = ArchiveOwner(store="sqlite /x/a.db timeout_history", begun=17)


def write(folder: Path, text: str) -> Archive:
    """Return an archive with one manifest, which has *text*."""
    (folder / "manifests").mkdir()
    (folder / "manifests" / "old.json").write_text(text)
    return Archive(folder)


@pytest.mark.parametrize("read", [Archive.purged, Archive.manifests])
@pytest.mark.parametrize(
    ("name", "missing"), [("typo", "typo is missing"), ("", "manifests is missing")]
)
def test_a_missing_archive_is_refused_and_not_read_as_empty(
    tmp_path: Path, read: Callable[[Archive], object], name: str, missing: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{missing}; mount its disk, or give"):
        read(Archive(tmp_path / name))


def test_an_empty_archive_is_an_archive(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "new" / "lake")
    archive.create()
    archive.create()

    assert (archive.manifests(), archive.purged()) == ([], frozenset())


def test_a_manifest_from_before_there_were_claims_is_read(tmp_path: Path) -> None:
    archive = write(tmp_path, json.dumps(MANIFEST))

    (found,) = archive.manifests()

    assert (found.run_id, found.files) == ("old", ("data/run=old/part-0.parquet",))
    assert archive.claimed("old") is None


@pytest.mark.parametrize(
    ("text", "got"),
    [
        (json.dumps(MANIFEST | {"format": 2}), "format"),
        (json.dumps({name: MANIFEST[name] for name in ("run_id", "files")}), "files, run_id;"),
        ("[]", "list"),
        ("", "not JSON"),
        ('{"run_id": "ol', "not JSON"),
    ],
)
def test_a_manifest_of_another_version_is_named(tmp_path: Path, text: str, got: str) -> None:
    archive = write(tmp_path, text)

    with pytest.raises(ConfigurationError, match=rf"old\.json is no manifest .* got .*{got}"):
        archive.manifests()


@pytest.mark.parametrize("options", [{}, {"use_deprecated_int96_timestamps": True}])
def test_rows_are_read_as_the_store_has_them_from_files_of_any_writer(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    archive = Archive(tmp_path)
    publish(archive, "r", "it", ROWS, **options)

    assert list(archive.rows("r")) == ROWS


def test_a_run_id_is_claimed_by_one_run_however_often_it_asks(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.claim("2024-03-01", OURS)
    archive.claim("2024-03-01", OURS)

    # The same path on another machine is another store's.
    with pytest.raises(RunConflict, match=r"a run of sqlite /x/a\.db .* such as 2024-03-01-NAME"):
        archive.claim("2024-03-01", replace(OURS, begun=18))

    assert archive.claimed("2024-03-01") == OURS
    assert (archive.purged(), archive.manifests()) == (frozenset(), [])


@pytest.mark.parametrize("text", ["", '{"store', "[]", '{"store": "it"}'])
def test_a_claim_that_is_half_written_is_a_claim(tmp_path: Path, text: str) -> None:
    archive = Archive(tmp_path)
    archive.create()
    (tmp_path / "manifests" / "r.claim").write_text(text)

    with pytest.raises(RunConflict, match="another store"):
        archive.claim("r", OURS)
