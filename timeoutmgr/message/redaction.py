"""Masking of secrets in URLs and of forged log lines, for every text that is shown or logged.

All of it is linear in the length of the text: a stranger's message may be long, and is logged.
"""

import re
import reprlib
from typing import Final

from timeoutmgr.errors import text_of

MASK: Final = "***"
LONGEST_TEXT: Final = 1024
"""Characters that a log line shows of one error."""
LONGEST_LINE: Final = 4096
"""Bytes of one line of the log."""

_CUT: Final = "…"
_LONGEST_NAME: Final = 64
"""Characters of a parameter's name; the value of a longer name is masked unread."""

_USER_PASSWORD = re.compile(r"(?P<before>//[^/?#@:]*:)(?P<password>[^/?#]*)(?=@)")
# A URL whose scheme was forgotten. A line of text may begin so as well: "error: no a@b".
_BARE_PASSWORD = re.compile(r"(?P<before>^[^/?#@:]*:)(?P<password>[^/?#]*)(?=@)")
# A password in which "/", "?" or "#" should have been quoted: up to the last "@" of its URL.
_RAW_PASSWORD = re.compile(r"(?P<before>//[^/?#@:\s]*:)(?P<password>(?:(?!://)\S){0,256})(?=@)")
# A name that held a "?" would be tried again from each of its question marks: quadratic. With white
# space in it, it is a sentence behind a semicolon.
_PARAMETER = re.compile(r"(?P<before>[?&;]\s*+(?P<name>[^=&;#?\s]++)=)(?P<value>[^&#;]*)")
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase|code)?|pwd|secret|token|credential|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|(^|[_.-])key$|signature|^sig$|^auth$",
    re.IGNORECASE,
)
_SHOWN: Final = 80
"""Characters of a caller's value in an error."""


def redact(url: str) -> str:
    """Return *url* with its password, and query parameters named like a secret, masked.

    It works on text that is no valid URL as well, and on several joined by ``;``: when in doubt
    it masks, and so a sentence is for ``masked``.
    """
    return _BARE_PASSWORD.sub(rf"\g<before>{MASK}", _line_masked(url))


def masked(text: str) -> str:
    """Return *text* with the secrets of every URL in it masked.

    A URL has its ``//``: without it, each line with a colon and an ``@`` would be a password.
    """
    # Line by line: a password ends with its line, whatever the next line holds.
    return "\n".join(_line_masked(line) for line in text.split("\n"))


def _line_masked(line: str) -> str:
    if "@" in line:
        line = _RAW_PASSWORD.sub(rf"\g<before>{MASK}", line)
        line = _USER_PASSWORD.sub(rf"\g<before>{MASK}", line)
    return _PARAMETER.sub(_mask_secret, line) if "=" in line else line


def on_one_line(value: object) -> str:
    """Return the text of *value* with line ends, other control signs and half characters escaped.

    A stranger's text must neither look like a line of the log nor make logging fail. Text that is
    longer than a log line shows is cut.
    """
    text = text_of(value)
    shown = "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode()
        for sign in text[:LONGEST_TEXT]
    )
    if len(text) <= LONGEST_TEXT and len(shown) <= LONGEST_TEXT:
        return shown
    return shown[: LONGEST_TEXT - len(_CUT)] + _CUT


def shown(value: object) -> str:
    """Return *value* as an error shows it: short, and without an end to how deep it is nested."""
    return reprlib.repr(value)[:_SHOWN]


def cut_line(line: str) -> str:
    """Return *line* as it fits into the log."""
    encoded = line.encode("utf-8", "backslashreplace")
    if len(encoded) <= LONGEST_LINE:
        return line
    room = LONGEST_LINE - len(_CUT.encode())
    return encoded[:room].decode("utf-8", "ignore") + _CUT


def _mask_secret(parameter: re.Match[str]) -> str:
    name = parameter["name"]
    if len(name) > _LONGEST_NAME or _SECRET_NAME.search(name):
        return parameter["before"] + MASK
    return parameter[0]
