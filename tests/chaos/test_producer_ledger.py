"""A producer's record can be read while it is being written."""

from __future__ import annotations

from pathlib import Path

from tests.testing.chaos.judging import DUE
from timeoutmgr.testing.chaos.promises import PromiseFile, Promises


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "producer-1.jsonl"
    file = PromiseFile(path)
    file.trying("a", DUE)
    whole = path.read_bytes()
    promises = Promises([path])
    path.write_bytes(whole + b'{"step": "accep')

    assert not promises.read()["a"].accepted

    path.write_bytes(whole + b'{"step": "accepted", "name": "a", "at": 1}\n')
    file.close()

    assert promises.read()["a"].accepted
