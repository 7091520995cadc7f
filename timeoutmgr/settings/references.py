"""``${NAME}`` in a settings file: a value of the environment, so that no secret is in the file."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from timeoutmgr.errors import ConfigurationError

_REFERENCE: Final = re.compile(r"\$(?:\$|\{(?P<name>[^}]*)\})")
_USER_INFO: Final = re.compile(r"://(?P<user>[^/?#]*)@")


def resolve(value: Any, key: str, source: str, environ: Mapping[str, str]) -> Any:
    """Return *value* with every ``${NAME}`` in its texts replaced; ``$$`` is one dollar sign.

    Between ``//`` and ``@`` of a URL, and in its query, the value is percent-encoded: a password
    stays as written, also with characters that a URL reserves. Raises ConfigurationError for
    a variable that is not set.
    """
    if isinstance(value, str):
        return _resolve_text(value, key, source, environ)
    if isinstance(value, Mapping):
        return {name: resolve(each, key, source, environ) for name, each in value.items()}
    if isinstance(value, list):
        return [resolve(each, key, source, environ) for each in value]
    return value


def referenced(value: Any) -> set[str]:
    """Return the names of all variables that *value* refers to."""
    if isinstance(value, str):
        return {match["name"] for match in _REFERENCE.finditer(value) if match["name"]}
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return {name for each in value for name in referenced(each)}
    return set()


def _resolve_text(text: str, key: str, source: str, environ: Mapping[str, str]) -> str:
    user = _USER_INFO.search(text)
    query = text.find("?") if "://" in text else -1

    def put_in(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "$"
        found = environ.get(name)
        if found is None:
            raise ConfigurationError(
                f"{key} in {source} refers to the environment variable {name!r}, which is not "
                "set; set it, or write $$ for a dollar sign"
            )
        at = match.start()
        in_user = user is not None and user.start("user") <= at < user.end("user")
        return quote(found, safe="") if in_user or 0 <= query < at else found

    return _REFERENCE.sub(put_in, text)
