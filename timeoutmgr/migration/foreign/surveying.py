"""A survey of foreign rows: each is translated once, so that nothing is met later. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from timeoutmgr.migration.foreign.rows import Layout, Untranslatable, translated
from timeoutmgr.migration.runs import Problem, Survey
from timeoutmgr.validation import Limits

MOST_PROBLEMS: Final = 20


def survey_rows(
    rows: Iterable[Mapping[str, Any]],
    layout: Layout,
    endpoint: str,
    renames: Mapping[str, str],
    limits: Limits,
    *,
    left: int,
) -> Survey:
    """Return what *rows* come to; of many problems the first, and how many more there are."""
    destinations: Counter[str] = Counter()
    problems: list[Problem] = []
    more = 0
    earliest = latest = None
    for row in rows:
        try:
            timeout = translated(row, layout, endpoint, renames, limits)
        except Untranslatable as error:
            if len(problems) < MOST_PROBLEMS:
                problems.append(Problem(f"row {row.get('Id')}", str(error), "mend or delete it"))
            else:
                more += 1
            continue
        destinations[timeout.destination] += 1
        earliest = timeout.due if earliest is None else min(earliest, timeout.due)
        latest = timeout.due if latest is None else max(latest, timeout.due)
    if more:
        problems.append(Problem(f"{more} more rows", "cannot be read either", "mend those first"))
    return Survey(
        count=destinations.total(),
        earliest=earliest,
        latest=latest,
        destinations=dict(destinations),
        problems=tuple(problems),
        left=left,
    )
