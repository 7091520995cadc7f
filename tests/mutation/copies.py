"""Copies of the checkout to run tests in: the mutant is there, and nothing of ours is touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from .mutant import ROOT, Mutant

TREES: Final = ("timeoutmgr", "persistence", "satellites", "chaos", "tests")
_FILES: Final = ("setup.cfg", "pyproject.toml")
# Variables that would make a run in a copy a part of the run that started it.
_OURS: Final = ("PYTEST_", "COV_", "COVERAGE_", "TIMEOUTMGR_TEST_RUN")


def copy_to(folder: Path, source: Path = ROOT) -> Path:
    """Copy package and tests from *source* into the new *folder*, compiled files with them."""
    for tree in TREES:
        shutil.copytree(source / tree, folder / tree)
    for file in _FILES:
        shutil.copy2(source / file, folder / file)
    return folder


def mutate(folder: Path, mutant: Mutant) -> None:
    """Make *mutant*'s change in the copy in *folder*."""
    path = folder / mutant.file
    path.write_text(mutant.source(folder))
    # Python tells a compiled file by second and size of its source; both may be the same now.
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment in which the copy in *folder* comes before an installation.

    An editable installation is asked only for modules that are not on the path;
    ``tests.mutation.inside`` refuses a run where the copy does not come first.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, **more, "PYTHONPATH": str(folder)}
