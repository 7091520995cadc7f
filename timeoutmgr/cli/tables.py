"""Text tables for a terminal: whole ids first, and as many columns as the width takes."""

import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

_GAP: Final = 2
_ELLIPSIS: Final = "…"
_LEAST: Final = 8
"""Cells of a column that is cut."""


def terminal_width() -> int | None:
    """Return the width of the terminal on standard output, None if that is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_lines(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    drop: Sequence[str] = (),
) -> Iterator[str]:
    """Yield a header and a line for each of *rows*, at most *width* wide.

    The first column stays whole, so that an id can be copied. If the rest is too wide, the columns
    of *drop* go, in that order, then the widest columns are cut. None is any width.
    """
    kept = list(range(len(columns)))
    widths = [
        max([cells(columns[at]), *(cells(row[at]) for row in rows)]) for at in range(len(columns))
    ]
    for name in drop:
        if width is None or _total(widths, kept) <= width:
            break
        kept.remove(columns.index(name))
    while width is not None and (over := _total(widths, kept) - width) > 0:
        widest = max(kept[1:], key=lambda at: widths[at], default=None)
        if widest is None or widths[widest] <= _LEAST:
            break
        widths[widest] = max(_LEAST, widths[widest] - over)
    for row in (columns, *rows):
        fitted = [_fitted(row[at], widths[at]) for at in kept]
        yield (" " * _GAP).join(fitted).rstrip()


def cells(text: str) -> int:
    """Return how many cells of a terminal *text* takes."""
    if text.isascii():
        return len(text)
    return sum(_cells_of(character) for character in text)


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[at] for at in kept) + _GAP * (len(kept) - 1)


def _fitted(text: str, width: int) -> str:
    room = width - cells(text)
    if room >= 0:
        return text + " " * room
    cut = text
    while cells(cut) > width - 1:
        cut = cut[:-1]
    return cut + _ELLIPSIS + " " * (width - 1 - cells(cut))
