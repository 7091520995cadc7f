"""Files that a command writes: refused before its work where they cannot be written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click


@contextmanager
def export_to(path: Path | None, option: str = "--output") -> Iterator[IO[str]]:
    """Lend the new file *path* of *option*, or standard output.

    Raises UsageError if the file cannot be created.

    An earlier export stays as it is. A file into which nothing was written is removed.
    """
    if path is None or is_standard_output(path):
        with click.open_file("-", "w", encoding="utf-8") as output:
            yield output
        return
    is_new = path.is_file() or not path.exists()  # otherwise a pipe, or a device
    with _opened(option, path, "x" if is_new else "w") as file:
        try:
            yield file
        finally:
            if is_new and not file.tell():
                path.unlink()


def is_standard_output(path: Path) -> bool:
    """Return whether *path* is the usual sign for standard output."""
    return str(path) == "-"


def _opened(option: str, path: Path, mode: str) -> IO[str]:
    try:
        return path.open(mode, encoding="utf-8")
    except FileExistsError:
        raise click.UsageError(
            f"{option} {path} is there, and an export replaces no file; name a new file, or "
            "remove it first"
        ) from None
    except OSError as error:
        raise _unwritable(option, path, error.strerror) from None


def require_writable(option: str, path: Path | None) -> None:
    """Raise UsageError if the file *path* of *option* could not be written; create no file."""
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise _unwritable(option, path, f"there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise _unwritable(option, path, "permission denied")


def _unwritable(option: str, path: Path, why: str | None) -> click.UsageError:
    return click.UsageError(
        f"{option} {path} cannot be written ({why}); name a file in a folder that can be written"
    )
