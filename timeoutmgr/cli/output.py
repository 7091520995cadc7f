"""What commands print: text for people, or one JSON document; secrets masked, no control codes."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from timeoutmgr.cli.tables import table_lines, terminal_width
from timeoutmgr.instants import Micros, from_micros
from timeoutmgr.redaction import redact


def print_json(document: object) -> None:
    """Print *document* on standard output: the only thing that is printed there."""
    text = json.dumps(document, ensure_ascii=False, indent=2)
    # Within strings alone: signs that are not seen, or turn a line round, are spelt out.
    click.echo(
        "".join(sign if sign in "\n" or sign.isprintable() else _spelt(sign) for sign in text)
    )


def _spelt(sign: str) -> str:
    return json.dumps(sign)[1:-1]


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, drop: Sequence[str] = ()
) -> None:
    """Print *rows* in columns; into a pipe as wide as they are, so that nothing is cut.

    On a terminal that is too narrow the columns of *drop* go, in that order.
    """
    shown = [_row(row) for row in rows]
    for line in table_lines(columns, shown, terminal_width(), drop):
        click.echo(line)


def print_tsv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a header and *rows* with tabs between their cells, for other programs."""
    for row in (columns, *rows):
        click.echo("\t".join(_row(row)))


def print_pairs(pairs: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one pair a line."""
    width = max((len(name) for name, _value in pairs), default=0)
    for name, value in pairs:
        shown = "-" if value is None else plain(str(value))
        click.echo(f"{name:<{width}}  {shown}")


def _row(row: Sequence[object]) -> list[str]:
    return [plain("" if cell is None else str(cell)) for cell in row]


def print_error(text: str) -> None:
    """Print *text* on standard error, secrets masked."""
    click.echo(masked(text), err=True)


def masked(text: str) -> str:
    """Return *text* with the secrets of every URL in it masked."""
    # Line by line: a password ends where its line ends, whatever the next one holds.
    return "\n".join(redact(line) for line in text.split("\n"))


def plain(text: str) -> str:
    """Return *text* with control characters spelt out: a message must not steer a terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def shown_time(instant: Micros | datetime | None) -> str | None:
    """Return *instant* in ISO 8601, in UTC."""
    if instant is None:
        return None
    at = from_micros(instant) if isinstance(instant, int) else instant
    return at.isoformat()


def shown_seconds(micros: int | None) -> float | None:
    """Return microseconds as seconds."""
    return None if micros is None else micros / 1_000_000


def without_nothing(document: dict[str, Any]) -> dict[str, Any]:
    """Return *document* without the keys that have no value."""
    return {key: value for key, value in document.items() if value is not None}
