"""A small file system in memory that a test can fill to the last byte, and free again."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.services.run import RUN_VARIABLE


class SmallDisk:
    """A tmpfs of *megabytes* in the run's folder; use it as a context manager."""

    def __init__(self, megabytes: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="disk-", dir=os.environ[RUN_VARIABLE]))
        self._ballast = self.folder / "ballast"
        # Everybody's: servers run as a user of their own.
        self._mount(f"size={megabytes}m,mode=1777")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Lazily: a server that has just ended may still hold a file for a moment, and one that
        # reconnects puts files where the disk was.
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
        shutil.rmtree(self.folder)

    def fill(self) -> None:
        """Take all that is free."""
        block = bytes(64 * 1024)
        with self._ballast.open("ab", buffering=0) as ballast:
            while block:
                try:
                    ballast.write(block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    block = block[: len(block) // 2]

    def free(self) -> None:
        """Free the space that ``fill`` took."""
        self._ballast.unlink()

    def _mount(self, options: str) -> None:
        try:
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)],
                capture_output=True,
                text=True,
                check=False,
            )
            refusal = done.stderr.strip() if done.returncode else None
        except FileNotFoundError:
            refusal = "mount is not installed"
        if refusal is not None:
            self.folder.rmdir()
            # Not an error in continuous integration either: a container may not mount.
            user = "root" if os.geteuid() == 0 else "not root"
            pytest.skip(f"no small disk: {refusal} ({user})")
