"""Folders that jobs write and read: what every worker finds under one path of the file system."""

import re
from pathlib import Path
from typing import Final

from timeoutmgr.errors import ConfigurationError

# One letter and a colon is a drive. One slash, since a Path has made one of two.
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


def folder_option(name: str, value: str | Path) -> Path:
    """Return *value*, the option *name*, as a path; raise ConfigurationError where it is a URL.

    As a path ``s3a://lake/h`` is a folder ``s3a:`` beside the program, which nobody meant. Ask
    before the path is made absolute: behind a root no scheme is seen.
    """
    if _SCHEME.match(str(value)):
        raise ConfigurationError(
            f"{name} is a folder of the file system, got the URL {str(value)!r}, which would be "
            "taken for a folder beside this program; mount it, and give the path under which this "
            "process and all of Spark's workers see it"
        )
    return Path(value)
