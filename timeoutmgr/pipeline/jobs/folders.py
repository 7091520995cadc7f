"""Folders that jobs write anew: only their own earlier output may be removed."""

import json
import re
from pathlib import Path
from typing import Final

from timeoutmgr.errors import ConfigurationError

COLUMNS: Final = ("reasons", "input")

# Names of Spark's output: parts, checksums beside them, and the remains of a dead run.
_OF_SPARK: Final = re.compile(r"_temporary|\.?(_SUCCESS|part-.+\.json)(\.crc)?")


def require_own_rejects(folder: Path) -> None:
    """Raise ConfigurationError if *folder* holds anything but rejects: it would be removed."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigurationError(f"rejects go to a folder, and {folder} is a file; name another")
    strange = next((path for path in sorted(folder.iterdir()) if not _is_ours(path)), None)
    if strange is not None:
        raise ConfigurationError(
            f"the folder for rejects, {folder}, holds {strange.name!r}, which no earlier run has "
            "rejected, and which would be removed; name a folder that is new or empty"
        )


def _is_ours(path: Path) -> bool:
    if not _OF_SPARK.fullmatch(path.name):
        return False
    # Another job's JSON, perhaps the very rows to schedule, has files of the same names.
    return not path.name.startswith("part-") or path.suffix == ".crc" or _holds_rejects(path)


def _holds_rejects(path: Path) -> bool:
    with path.open("rb") as file:
        line = file.readline()
    if not line:
        return True  # a task without rejects
    try:
        first = json.loads(line)
    except ValueError:
        return False
    return isinstance(first, dict) and sorted(first) == sorted(COLUMNS)
