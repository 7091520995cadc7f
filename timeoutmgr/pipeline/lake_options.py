"""Options of the jobs on a lake's tables; declared as those in ``options``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from timeoutmgr.pipeline.options import check_declared, history_place, option

PLACE: Final = option(
    "--lake",
    "The history table: delta:URI, iceberg:CATALOG.NAMESPACE.TABLE, or a folder for Parquet.",
    history_place,
    metavar="TABLE",
)


def dry_run(help: str) -> Mapping[str, Any]:
    """Return the metadata of a field ``dry_run``."""
    return option("--dry-run", help)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """Options of ``compact``: small files of past days of the table *lake* together."""

    lake: str = field(metadata=PLACE)
    dry_run: bool = field(
        default=False, metadata=dry_run("Only count the files that would be put together.")
    )

    def __post_init__(self) -> None:
        """Check every value."""
        check_declared(self)
