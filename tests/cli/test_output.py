"""What commands print: a stranger's text neither steers a terminal nor breaks the JSON."""

from __future__ import annotations

import io
import json
import sys

import pytest

from timeoutmgr.cli import output
from timeoutmgr.cli.main import cli

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


def test_characters_that_the_encoding_lacks_are_spelt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    written, document = io.BytesIO(), {"text": "Größe 東京 😀"}
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))

    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    output.print_json(document)

    sys.stdout.flush()
    text = written.getvalue().decode("latin-1")
    assert ended.value.code == 0
    assert "TIMEOUTMGR_\\u2026" in text
    assert "Größe" in text
    assert json.loads(text[text.rindex("{") :]) == document
