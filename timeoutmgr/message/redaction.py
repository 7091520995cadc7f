"""Redaction: masks secrets in URLs and forged log lines in every text that is shown or logged.

All functions take linear time: a stranger's message may be long, and is logged.
"""

import re
import reprlib
from typing import Final

from timeoutmgr.errors import text_of

MASK: Final = "***"
LONGEST_TEXT: Final = 1024
"""Maximum characters of an error in a log line."""
LONGEST_LINE: Final = 4096
"""Maximum bytes of a log line."""

_CUT: Final = "…"
_LONGEST_NAME: Final = 64
"""Maximum characters of a parameter's name; the value of a longer name is always masked."""

_USER_PASSWORD = re.compile(r"(?P<before>//[^/?#@:]*:)(?P<password>[^/?#]*)(?=@)")
# A URL whose scheme was forgotten. A line of text may also begin like this: "error: no a@b".
_BARE_PASSWORD = re.compile(r"(?P<before>^[^/?#@:]*:)(?P<password>[^/?#]*)(?=@)")
# A password in which "/", "?" or "#" should have been quoted: up to the last "@" of its URL.
_RAW_PASSWORD = re.compile(r"(?P<before>//[^/?#@:\s]*:)(?P<password>(?:(?!://)\S){0,256})(?=@)")
# If a name could contain "?", the match would start again at each question mark, in quadratic time.
# A name with white space is a sentence after a semicolon.
_PARAMETER = re.compile(r"(?P<before>[?&;]\s*+(?P<name>[^=&;#?\s]++)=)(?P<value>[^&#;]*)")
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase|code)?|pwd|secret|token|credential|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|(^|[_.-])key$|signature|^sig$|^auth$",
    re.IGNORECASE,
)
_SHOWN: Final = 80
"""Maximum characters of a caller's value in an error."""


def redact(url: str) -> str:
    """Return *url* with its password, and query parameters named like a secret, masked.

    It also works on invalid URLs, and on several URLs joined by ``;``. It masks when in doubt, so
    use ``masked`` for sentences.
    """
    return _BARE_PASSWORD.sub(rf"\g<before>{MASK}", _line_masked(url))


def masked(text: str) -> str:
    """Return *text* with the secrets of every URL in it masked.

    A URL must contain ``//``: otherwise every line with a colon and an ``@`` would be a password.
    """
    # Line by line, because a password ends with its line, whatever the next line has.
    return "\n".join(_line_masked(line) for line in text.split("\n"))


def _line_masked(line: str) -> str:
    if "@" in line:
        line = _RAW_PASSWORD.sub(rf"\g<before>{MASK}", line)
        line = _USER_PASSWORD.sub(rf"\g<before>{MASK}", line)
    return _PARAMETER.sub(_mask_secret, line) if "=" in line else line


def on_one_line(value: object) -> str:
    """Return the text of *value*, with line ends, control characters and lone surrogates escaped.

    A stranger's text must not look like a line of the log, or make logging fail. Text is cut to the
    maximum of a log line.
    """
    text = text_of(value)
    shown = plain(text[:LONGEST_TEXT])
    if len(text) <= LONGEST_TEXT and len(shown) <= LONGEST_TEXT:
        return shown
    return shown[: LONGEST_TEXT - len(_CUT)] + _CUT


def plain(text: str) -> str:
    """Return *text* with control characters spelt out: a message must not control a terminal."""
    # By ascii(): a codec's module is a file, and a process without descriptors opens none.
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def shown(value: object) -> str:
    """Return *value* as text for an error: short, however deep its nesting."""
    return reprlib.repr(value)[:_SHOWN]


def cut_line(line: str) -> str:
    """Return *line*, cut to fit into the log."""
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
