"""The modules of the examples, for tests: examples are programs outside of any package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

EXAMPLES: Final = Path(__file__).parents[2] / "examples"


def custom_store(folder: Path, name: str = "delayed.db") -> Any:
    """Return the delayed message store of ``examples/custom_store``, on a file in *folder*."""
    path = EXAMPLES / "custom_store" / "store.py"
    spec = importlib.util.spec_from_file_location("custom_store", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FileStore(str(folder / name))
