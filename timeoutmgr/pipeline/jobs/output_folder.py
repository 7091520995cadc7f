"""Output folders of jobs, which may replace only the output of their own earlier runs."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from timeoutmgr.errors import ConfigurationError

# Names of Spark's output: parts, checksums beside them, and the remains of a dead run.
_OF_SPARK: Final = re.compile(r"_temporary|\.?(_SUCCESS|part-.+)(\.crc)?")


def require_own(folder: Path, what: str) -> None:
    """Raise ConfigurationError if *folder* has other files than *what*: the job would delete them.

    *what* is ``rejects`` or ``verdicts``.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigurationError(f"{what} go to a folder, and {folder} is a file; name another")
    paths = sorted(folder.iterdir())
    is_own = {"rejects": _holds_rejects, "verdicts": _holds_verdicts}[what]
    strange = next((path for path in paths if not _is_output(path, is_own)), None)
    if strange is not None:
        raise ConfigurationError(
            f"the folder for {what}, {folder}, holds {strange.name!r}, which no earlier run has "
            "written, and which would be removed; name a folder that is new or empty"
        )


def _is_output(path: Path, is_own: Callable[[Path], bool]) -> bool:
    if not _OF_SPARK.fullmatch(path.name):
        return False
    # Another job's output, perhaps the very rows to schedule, has files of the same names.
    return not path.name.startswith("part-") or path.suffix == ".crc" or is_own(path)


def _holds_rejects(path: Path) -> bool:
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        line = file.readline()
    if not line:
        return True  # the file of a task without rejects
    try:
        first = json.loads(line)
    except ValueError:
        return False
    return isinstance(first, dict) and first.keys() == {"reasons", "input"}


def _holds_verdicts(path: Path) -> bool:
    try:
        return {"id", "verdict", "dispatches"} <= set(pq.read_schema(path).names)
    except (pa.ArrowInvalid, OSError):
        return False
