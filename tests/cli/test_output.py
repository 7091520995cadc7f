"""What commands print: a stranger's text neither steers a terminal nor breaks the JSON."""

from __future__ import annotations

import json

import pytest

from timeoutmgr.cli import output

# C0, C1, no-break and soft signs, both separators, turns of direction, a byte order mark, a half.
UNSEEN = [
    *("\x00", "\x1b", "\x7f", "\x85", "\x9b", "\xa0", "\xad"),
    *("\u200b", "\u200e", "\u2028", "\u2029", "\u202e", "\u2066", "\ufeff", "\ud800"),
    "\U000e0001",
]


@pytest.mark.parametrize("sign", UNSEEN, ids=lambda sign: f"{ord(sign):x}")
def test_invisible_characters_are_escaped_in_json(
    sign: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {f"queue{sign}": [f"mail{sign}sales", {"text": sign}]}

    output.print_json(document)

    shown = capsys.readouterr().out
    assert all(each.isprintable() for each in shown.splitlines())
    assert sign not in shown.removesuffix("\n")
    assert json.loads(shown) == document


def test_visible_characters_stay_as_they_are_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"text": "Größe 東京 😀"})

    assert "Größe 東京 😀" in capsys.readouterr().out
