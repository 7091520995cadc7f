"""Masking of secrets in URLs, and of what would forge a log, for whatever is shown or logged."""

import re
from typing import Final

MASK: Final = "***"

_USER_PASSWORD = re.compile(r"(?P<before>(?:^|//)[^/?#@:]*:)(?P<password>[^/?#]*)(?=@)")
_PARAMETER = re.compile(r"(?P<before>[?&;](?P<name>[^=&;#]+)=)(?P<value>[^&#;]*)")
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase|code)?|pwd|secret|token|credential|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|(^|[_.-])key$|signature|^sig$|^auth$",
    re.IGNORECASE,
)


def redact(url: str) -> str:
    """Return *url* with its password, and query parameters named like a secret, masked.

    It works on text that is no valid URL as well, and on several joined by ``;``: when in doubt
    it masks.
    """
    masked = _USER_PASSWORD.sub(rf"\g<before>{MASK}", url)
    return _PARAMETER.sub(_mask_secret, masked)


def on_one_line(told: object) -> str:
    """Return the text of *told* with line ends, other control signs and half characters escaped.

    What a stranger put into a message must neither look like a line of the log nor fail it.
    """
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in str(told)
    )


def _mask_secret(parameter: re.Match[str]) -> str:
    if _SECRET_NAME.search(parameter["name"]):
        return parameter["before"] + MASK
    return parameter[0]
