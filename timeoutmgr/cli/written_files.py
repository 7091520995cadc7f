"""Files that a command writes; it refuses unwritable files before its work."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

import click

from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.shared import Shared
from timeoutmgr.database.places import sync_path
from timeoutmgr.errors import ConfigurationError


class Unwritten(click.ClickException):
    """An export could not be written completely; the exit code is 1."""


class Export(Protocol):
    """The destination of an export."""

    def write(self, document: Mapping[str, Any]) -> None:
        """Write *document* as a line. Raises Unwritten."""
        ...

    def save(self) -> None:
        """Sync the data, which then survives a power failure. Raises Unwritten."""
        ...


@contextmanager
def export_to(path: Path | None, option: str = "--output") -> Iterator[Export]:
    """Open the new file *path* of *option*, or standard output; save it at the end.

    Raises UsageError if the file cannot be created.

    An existing file is never changed. A file into which nothing was written is removed, and so is
    an incomplete file after any error.
    """
    if path is None or is_standard_output(path):
        yield _StandardOutput()
        return
    with closing(_NewFile(option, path)) as file:
        yield file
        file.save()


def show_exported(shared: Shared, count: int, path: Path | None) -> Exit:
    """Print how many messages were exported, if not to standard output; return the exit code."""
    if path is not None and not is_standard_output(path):
        document = {"exported": count, "file": str(path)}
        shared.show(document, lambda: click.echo(f"{count} exported to {path}"))
    return Exit.OK if count else Exit.NOT_FOUND


class _StandardOutput:
    """An export to standard output; the command line reports errors of writing it."""

    def write(self, document: Mapping[str, Any]) -> None:
        click.echo(json.dumps(document))

    def save(self) -> None:
        """No-op: the reader of standard output saves it."""


class _NewFile:
    """An export into a new file, or into an existing pipe or device."""

    def __init__(self, option: str, path: Path) -> None:
        self._option, self._path = option, path
        self._is_new = path.is_file() or not path.exists()  # otherwise a pipe, or a device
        self._is_empty, self._is_saved = True, False
        self._file = _opened(option, path, "x" if self._is_new else "w")

    def write(self, document: Mapping[str, Any]) -> None:
        self._is_empty, self._is_saved = False, False
        with self._sentence():
            self._file.write(json.dumps(document) + "\n")

    def save(self) -> None:
        if self._is_empty or self._is_saved:
            return
        with self._sentence():
            self._file.flush()
            if self._is_new:
                os.fsync(self._file.fileno())
                sync_path(self._path.absolute().parent)
        self._is_saved = True

    def close(self) -> None:
        with suppress(OSError):  # unwritten data fails again, but the file is closed
            self._file.close()
        if self._is_new and not self._is_saved:
            self._path.unlink(missing_ok=True)

    @contextmanager
    def _sentence(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unwritten(
                f"{self._option} {self._path} cannot be written to its end "
                f"({error.strerror or error}), and nothing is changed; make room, or name a file "
                "elsewhere"
            ) from None


def is_standard_output(path: Path) -> bool:
    """Return whether *path* means standard output."""
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


@contextmanager
def written_whole(path: Path) -> Iterator[IO[str]]:
    """Open the new content of *path*; remove the file if it is not written to its end."""
    file = None
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            yield file
    except OSError as error:
        if file is not None and path.is_file():  # otherwise a pipe, or a device
            path.unlink()
        raise ConfigurationError(f"{path} cannot be written ({error.strerror or error})") from error


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
