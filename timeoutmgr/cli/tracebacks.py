"""Tracebacks of errors that a command did not expect."""

import contextlib
import importlib
from pathlib import Path
from types import TracebackType
from typing import Final

import click

_OURS: Final = str(Path(__file__).parent.parent)
_FRAMEWORK: Final = (
    str(Path(click.__file__).parent),
    str(Path(importlib.__file__).parent),
    contextlib.__file__,
    "<frozen importlib",
)


def from_user_code(error: BaseException) -> TracebackType | None:
    """Return the traceback of *error* from the first frame that is neither ours nor a framework's.

    An error in the module of ``--app`` is shown where it is; an error of ours is shown whole.
    """
    found = error.__traceback__
    while found is not None:
        if not found.tb_frame.f_code.co_filename.startswith((_OURS, *_FRAMEWORK)):
            return found
        found = found.tb_next
    return error.__traceback__
