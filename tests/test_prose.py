"""The prose gate finds pronouns in place of nouns, and counts nothing else."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
from types import ModuleType

import pytest

from tests import house


def _loaded() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("prose", str(house.ROOT / ".ci" / "prose"))
    spec = importlib.util.spec_from_loader("prose", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        # Data classes look their module up while they are made.
        patch.setitem(sys.modules, "prose", module)
        loader.exec_module(module)
    return module


prose = _loaded()


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("The store keeps one row for each id.", 0),
        ("A row is locked, and another one is not.", 1),
        ("Of two batches that wait prefer the older one.", 1),
        ("Tell those that wait for the lock.", 1),
        ("Nobody reads the row. The next batch does. Whoever waits longest.", 1),
        ("Ask ``one of those`` for its *what* and go.", 0),
        ("Not me. One of us.", 0),
    ],
)
def test_a_sentence_of_four_words_is_a_hit_if_a_pronoun_stands_for_a_noun(
    text: str, hits: int
) -> None:
    assert len([one for one in prose.sentences(text, "here") if one.is_hit]) == hits


def test_docstrings_comments_and_messages_are_read() -> None:
    source = (
        '"""A module of one docstring."""\n'
        "LIMIT = 3\n"
        '"""What a bare string says."""\n'
        "# Two lines of\n"
        "# one comment.\n"
        "x = 1  # noqa: E501\n"
        'logger.warning("pump %s lost those messages", x)\n'
        'raise ValueError(f"got {x}, and " + "expected whatever")\n'
    )
    tree = ast.parse(source)

    assert [text for _line, text in prose.docstrings(tree)] == [
        "A module of one docstring.",
        "What a bare string says.",
    ]
    assert list(prose.comments(source)) == [(4, "Two lines of one comment.")]
    assert sorted(text for _line, text in prose.messages(tree)) == [
        "expected whatever",
        "got X, and ",
        "pump %s lost those messages",
    ]


def test_an_entry_may_only_fall() -> None:
    unit = prose.Unit("cli", [prose.Sentence("here", "Tell those that wait.")])
    unit.sentences += [prose.Sentence("here", "The pump sends a message.")] * 4

    assert unit.share == 20
    assert list(prose.complaints([unit], {"cli": 20.5})) == []
    assert "lower its entry" in "".join(prose.complaints([unit], {"cli": 22}))
    assert "the limit is 19" in "".join(prose.complaints([unit], {"cli": 19}))
    assert "no such unit" in "".join(prose.complaints([unit], {"cli": 20.5, "gone": 20}))


def test_a_unit_within_the_limit_defines_no_word_that_the_glossary_replaces() -> None:
    unit = prose.Unit("cli", [prose.Sentence("here", "The pump sends a message.")])
    unit.identifiers = [("here", "take_row"), ("here", "handler"), ("here", "DeadLetter")]

    assert list(prose.complaints([unit], {})) == [
        "here: take_row says 'take'; the glossary's term is 'lock'"
    ]


def test_a_folder_is_a_unit() -> None:
    assert prose.unit_of(house.ROOT / "timeoutmgr/cli/run.py") == "timeoutmgr/cli"
    assert prose.unit_of(house.ROOT / "timeoutmgr/errors.py") == "timeoutmgr"
    assert prose.unit_of(house.ROOT / "satellites/poller.py") == "satellites"


def test_a_page_is_read_without_its_code_and_with_its_tables() -> None:
    page = (
        "# A title of four words\n\nTell those that [wait](those-who.md)\nfor the lock.\n\n"
        "```sh\nwhat nobody reads is code\n```\n\n| what it is for the reader | X |\n|---|---|\n"
    )

    read = [one for text in prose.texts_of_page(page) for one in prose.sentences(text, "here")]

    assert [one.text for one in read if one.is_hit] == [
        "Tell those that [wait] for the lock.",
        "what it is for the reader",
    ]
    assert len(read) == 3


def test_a_unit_has_the_limit_of_its_kind() -> None:
    unit = prose.Unit("pages", [prose.Sentence("here", "Tell those that wait.")], limit=3.0)
    unit.sentences += [prose.Sentence("here", "The pump sends a message.")] * 24

    assert unit.share == 4
    assert "the limit is 3" in "".join(prose.complaints([unit], {}))
