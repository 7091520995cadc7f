"""Names from the configuration that become identifiers in SQL."""

from re import compile
from typing import Final

from timeoutmgr.errors import ConfigurationError

_IDENTIFIER: Final = compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")


def checked_identifier(what: str, name: str) -> str:
    """Return *name* if it is safe as a schema or table prefix; raise ConfigurationError if not.

    At most 41 characters, so that prefix and table name together fit PostgreSQL's 63.
    """
    if not _IDENTIFIER.fullmatch(name):
        raise ConfigurationError(
            f"{what} {name[:80]!r} is no plain identifier; expected a letter or underscore, then "
            "at most 40 letters, digits or underscores"
        )
    return name
