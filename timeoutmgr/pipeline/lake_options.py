"""Options of the jobs on a lake's tables, declared like the options in ``options``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.options import check_declared, history_option, option, optional, positive

PLACE: Final = history_option("--lake")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """Options of ``restore``: history, used ids and pending timeouts of *lake* into *store*.

    *of_store* is the archived store's name in the table; None if there is only one. A transaction
    writes *batch* rows.
    """

    store: str
    lake: str = field(metadata=PLACE)
    of_store: str | None = optional(
        None, "--of", "Name of the archived store in the table.", metavar="NAME"
    )
    history: bool = optional(True, "--no-history", "Restore only used ids and pending messages.")
    dry_run: bool = optional(False, "--dry-run", "Only count what would be restored.")
    batch: int = optional(5_000, "", "", positive)

    def __post_init__(self) -> None:
        """Check every value."""
        check_declared(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseOptions:
    """Options of ``erase``: the timeouts that match any of these values, in *store* and *lake*.

    In the lake, only rows of *of_store* count: the name of *store* when it was archived. None means
    its name today.
    """

    store: str
    lake: str | None = field(default=None, metadata=PLACE)
    of_store: str | None = optional(
        None, "--of", "The name of this store in the lake, if it moved.", metavar="NAME"
    )
    saga_ids: tuple[str, ...] = optional((), "--saga-ids", "Saga ids, separated by commas.")
    headers: Mapping[str, str] = field(
        default_factory=dict,
        metadata=option("--header", "Header and its value; may be repeated.", metavar="NAME=VALUE"),
    )
    destinations: tuple[str, ...] = optional(
        (), "--destinations", "Queues of the person, separated by commas."
    )
    ids: tuple[str, ...] = optional((), "--ids", "Ids of timeouts, separated by commas.")
    dry_run: bool = optional(False, "--dry-run", "Only count what would be erased.")

    def __post_init__(self) -> None:
        """Check every value."""
        check_declared(self)
        if not any(self.selection().values()):
            raise ConfigurationError(
                "nothing is selected; give --saga-ids, --header, --destinations or --ids"
            )

    def selection(self) -> dict[str, Any]:
        """Return the values that select timeouts."""
        return {
            "saga_ids": sorted(self.saga_ids),
            "headers": dict(self.headers),
            "destinations": sorted(self.destinations),
            "ids": sorted(self.ids),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """Options of ``compact``, which merges small files of past days of the table *lake*."""

    lake: str = field(metadata=PLACE)
    dry_run: bool = optional(False, "--dry-run", "Only count the files that would be merged.")

    def __post_init__(self) -> None:
        """Check every value."""
        check_declared(self)
