"""Routes in the SQL queue lead where a broker's exchanges would lead."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timeoutmgr.transport.sql.foreign import matching_queues

words = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=5).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=5).map(".".join)


def as_regular_expression(pattern: str) -> re.Pattern[str]:
    """*pattern* as an expression over words that each end with a dot."""
    kinds = {"*": r"[^.]*\.", "#": r"(?:[^.]*\.)*"}
    return re.compile("".join(kinds.get(word, f"{word}\\.") for word in pattern.split(".")))


@given(patterns, words)
@example("a.#", "a")
@example("#", "")
@example("*.#.b", "a.b")
@example("#.#", "a")
def test_a_topic_leads_by_words(pattern: str, key: str) -> None:
    expected = as_regular_expression(pattern).fullmatch(key + ".") is not None

    assert (matching_queues([(pattern, "q", "topic")], key) == {"q"}) is expected


@pytest.mark.parametrize(
    ("kind", "bound", "key", "leads"),
    [
        ("direct", "a", "a", True),
        ("direct", "a", "b", False),
        ("direct", "#", "b", False),
        ("fanout", "a", "b", True),
    ],
)
def test_each_type_of_exchange_leads_by_its_rule(
    kind: str, bound: str, key: str, leads: bool
) -> None:
    assert (matching_queues([(bound, "q", kind)], key) == {"q"}) is leads
