"""Timeouts as rows."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from timeoutmgr.persistence.sql.rows import to_json

TEXTS = st.text(st.characters(), max_size=20)


@given(st.dictionaries(TEXTS, TEXTS, max_size=5))
def test_headers_are_written_as_json_writes_them(headers: dict[str, str]) -> None:
    assert to_json(headers) == json.dumps(headers, separators=(",", ":"))
