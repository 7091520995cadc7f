from __future__ import annotations

from typing import Any

import pytest

from timeoutmgr.database import checked_identifier
from timeoutmgr.errors import ConfigurationError


@pytest.mark.behaviour(98, 126)
@pytest.mark.parametrize("name", ["a", "_", "Sales_2", "x" * 41])
def test_a_plain_identifier_is_accepted(name: str) -> None:
    assert checked_identifier("schema", name) == name


@pytest.mark.behaviour(98, 126)
@pytest.mark.parametrize(
    "name",
    [
        "",
        "1a",
        "a-b",
        "a b",
        'a"b',
        "a'b",
        "a]b",
        "a`b",
        "a;drop",
        "a.b",
        "ä",
        "a\n",
        "x" * 42,
        "%s",
        None,
        5,
    ],
)
def test_a_name_that_needs_quotes_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"schema .* is no plain identifier"):
        checked_identifier("schema", name)
