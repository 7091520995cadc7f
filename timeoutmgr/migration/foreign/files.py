"""Exports of a timeout table: CSV and Parquet, read row by row."""

from __future__ import annotations

import csv
import hashlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.migration.foreign.rows import Layout

_BLOCK: Final = 1 << 20


def read_rows(path: Path, layout: Layout) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of *path* by the product's names of columns; raise ConfigurationError."""
    rows = _from_parquet(path) if path.suffix.lower() == ".parquet" else _from_csv(path)
    names: dict[str, str] | None = None
    for row in _readable(rows, path):
        if names is None:
            names = _names(row, path, layout)
        yield {name: row[theirs] for name, theirs in names.items()}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file: a run is resumed with the very same."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    return found.hexdigest()


def _readable(rows: Iterator[Mapping[str, Any]], path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield *rows*; what they are read by says what is wrong in words of its own."""
    number = 0
    try:
        for row in rows:
            number += 1
            yield row
    except (csv.Error, ValueError, OSError) as error:  # pyarrow's are ValueErrors or OSErrors
        raise ConfigurationError(
            f"{path} cannot be read behind row {number}: {error}; export it anew, CSV in UTF-8 "
            "with a header line, or Parquet"
        ) from error


def _names(row: Mapping[str, Any], path: Path, layout: Layout) -> dict[str, str]:
    there = {name.lower(): name for name in row}
    missing = [name for name in layout.columns if name.lower() not in there]
    if missing:
        raise ConfigurationError(
            f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(row)}. Export them "
            "with a header line"
        )
    return {name: there[name.lower()] for name in layout.columns}


def _from_csv(path: Path) -> Iterator[Mapping[str, Any]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # bodies are longer than its 128 kB
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from csv.DictReader(file, strict=True)


def _from_parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")  # it may lack, and has no types
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{path} is Parquet, and pyarrow is not installed; pip install 'timeoutmgr[parquet]', "
            "or export CSV"
        ) from error
    with parquet.ParquetFile(path) as file:
        for block in file.iter_batches(batch_size=1_000):
            yield from block.to_pylist()
