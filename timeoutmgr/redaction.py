"""Masking of secrets in URLs, for whatever is shown, logged or raised."""

import re
from typing import Final

MASK: Final = "***"

_USER_PASSWORD = re.compile(r"(?P<before>//[^/?#@:]*:)(?P<password>[^/?#]*)(?=@)")
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


def _mask_secret(parameter: re.Match[str]) -> str:
    if _SECRET_NAME.search(parameter["name"]):
        return parameter["before"] + MASK
    return parameter[0]
