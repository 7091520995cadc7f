"""Output of commands: text, tables or one JSON document, and log lines; secrets masked."""

import base64
import codecs
import contextlib
import io
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from traceback import walk_tb
from typing import Any, Final, TextIO

import click

from timeoutmgr.message.instants import Micros, from_micros
from timeoutmgr.message.redaction import cut_line, masked
from timeoutmgr.message.redaction import plain as plain
from timeoutmgr.resilience.error_copy import traceback_of

_REASON_LENGTH: Final = 80
"""Characters of a reason in a table."""


def print_json(document: object) -> None:
    """Print *document* on standard output, where nothing else is printed."""
    text = json.dumps(document, ensure_ascii=False, indent=2)
    # Escape invisible characters and changes of direction; only strings can contain them.
    click.echo(
        "".join(sign if sign in "\n" or sign.isprintable() else _spelt(sign) for sign in text)
    )


def _spelt(text: str) -> str:
    return json.dumps(text)[1:-1]


def _spelt_at(error: Any) -> tuple[str, int]:
    return _spelt(error.object[error.start : error.end]), error.end


def spell_out_missing_characters() -> None:
    """Make standard output escape characters that its encoding lacks: Latin-1 has no "…"."""
    codecs.register_error("timeoutmgr", _spelt_at)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="timeoutmgr")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, drop: Sequence[str] = ()
) -> None:
    """Print *rows* in columns; in a pipe at full width, so that no cell is cut.

    On a narrow terminal, leave out the columns of *drop*, in this order.
    """
    shown = [_row(row) for row in rows]
    for line in table_lines(columns, shown, terminal_width(), drop):
        click.echo(line)


def print_documents(
    columns: Sequence[str], documents: Sequence[Mapping[str, object]], *, drop: Sequence[str] = ()
) -> None:
    """Print *documents* as a table; a key has underscores where its column's name has spaces."""
    keys = [column.replace(" ", "_") for column in columns]
    print_table(columns, [[each[key] for key in keys] for each in documents], drop=drop)


def print_tsv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a header and *rows* with tabs between their cells, for other programs."""
    for row in (columns, *rows):
        click.echo("\t".join(_row(row)))


def print_pairs(pairs: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one pair per line."""
    width = max((len(name) for name, _value in pairs), default=0)
    for name, value in pairs:
        shown = "-" if value is None else plain(str(value))
        click.echo(f"{name:<{width}}  {shown}")


def short(reason: str | None) -> str | None:
    """Return the start of *reason*'s first line, for a table cell."""
    return None if reason is None else reason.partition("\n")[0][:_REASON_LENGTH]


def _row(row: Sequence[object]) -> list[str]:
    return [plain("" if cell is None else str(cell)) for cell in row]


def print_error(text: str) -> None:
    """Print *text* on standard error, secrets masked."""
    click.echo(masked(text), err=True)


def shown_time(instant: Micros | datetime | None) -> str | None:
    """Return *instant* in ISO 8601, in UTC."""
    if instant is None:
        return None
    at = from_micros(instant) if isinstance(instant, int) else instant
    return at.isoformat()


def shown_seconds(micros: int | None) -> float | None:
    """Return microseconds as seconds."""
    return None if micros is None else micros / 1_000_000


def body_document(body: bytes) -> dict[str, str]:
    """Return *body* for JSON: as text, or as base64 if it is not text."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def without_nothing(document: dict[str, Any]) -> dict[str, Any]:
    """Return *document* without keys that have no value."""
    return {key: value for key, value in document.items() if value is not None}


_GAP: Final = 2
_ELLIPSIS: Final = "…"
_LEAST: Final = 8
"""Width of a column that is cut."""


def terminal_width() -> int | None:
    """Return the width of the terminal on standard output; None if it is not a terminal."""
    return shutil.get_terminal_size().columns if is_terminal() else None


def is_terminal() -> bool:
    """Return whether standard output is a terminal; it may be closed (``>&-``)."""
    # If it is closed, sys.stdout is None, whatever the types say.
    stdout: TextIO | None = sys.stdout
    return stdout is not None and stdout.isatty()


def flush() -> None:
    """Flush standard output. Raises OSError if that fails."""
    stdout: TextIO | None = sys.stdout
    if stdout is not None:
        stdout.flush()


_WRITERS: Final = (click.echo.__code__, flush.__code__)


def is_of_output(error: OSError) -> bool:
    """Return whether *error* came from writing output, not from the command itself."""
    return any(frame.f_code in _WRITERS for frame, _line in walk_tb(error.__traceback__))


def give_up_stdout() -> None:
    """Discard the rest of standard output, on which Python would fail at exit."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def table_lines(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    drop: Sequence[str] = (),
) -> Iterator[str]:
    """Yield a header and a line for each of *rows*, at most *width* wide.

    The first column is never cut, so that an id can be copied. If the rest is too wide, leave out
    the columns of *drop*, in this order, then cut the widest columns. None is any width.
    """
    kept = list(range(len(columns)))
    widths = [
        max([cells(columns[at]), *(cells(row[at]) for row in rows)]) for at in range(len(columns))
    ]
    for name in [each for each in drop if each in columns]:
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
    """Return the number of terminal cells that *text* occupies."""
    return len(text) if text.isascii() else sum(_cells_of(character) for character in text)


def _cells_of(character: str) -> int:
    import unicodedata  # a megabyte, for texts beyond ASCII

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


class MaskingFormatter(logging.Formatter):
    """Masks the secrets of URLs and cuts long lines, also in tracebacks."""

    @staticmethod
    def converter(seconds: float | None = None) -> time.struct_time:
        """Return the time in UTC."""
        return time.gmtime(seconds)

    def formatException(self, ei: tuple[object, BaseException | None, object]) -> str:
        """Return the traceback, or a substitute if it cannot be formatted."""
        return traceback_of(ei[1]).rstrip("\n")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        # Masked first: half a URL would not be recognised.
        return "\n".join(cut_line(line) for line in masked(super().format(record)).split("\n"))


def text_formatter(process: int | None = None) -> logging.Formatter:
    """Return the formatter of lines for people, with the number of a *process* if given."""
    who = "" if process is None else f"[{process}] "
    return MaskingFormatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)s {who}%(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )


def log_to_stderr(level: int, formatter: logging.Formatter | None = None) -> None:
    """Write log lines of *level* and above to standard error, as text by default."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter or text_formatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("timeoutmgr").setLevel(level)
