"""A producer's record can be read while it is being written."""

from __future__ import annotations

from pathlib import Path

from chaos.producer_ledger import ProducerLedger, ProducerLedgerWriter
from tests.chaos.evidence import DUE


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "producer-1.jsonl"
    file = ProducerLedgerWriter(path)
    file.trying("a", DUE)
    whole = path.read_bytes()
    promises = ProducerLedger([path])
    path.write_bytes(whole + b'{"step": "accep')

    assert not promises.read()["a"].accepted

    path.write_bytes(whole + b'{"step": "accepted", "name": "a", "at": 1}\n')
    file.close()

    assert promises.read()["a"].accepted
