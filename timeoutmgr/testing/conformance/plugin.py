"""The pytest plugin's work in a run with a suite: import parts and deselect cases.

The hooks are in the module ``pytest_timeoutmgr``: pytest loads them in every run, and an import
of this package would slow each run down by half a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, TypeVar

import pytest

Case = TypeVar("Case", bound=Callable[..., Any])

NEEDS: Final = "timeoutmgr_needs"

given: Final[dict[str, Callable[[], Any]]] = {}
"""The functions named on the command line, which create parts, by kind of part."""


def needs(**facts: bool) -> Callable[[Case], Case]:
    """Mark a case that applies only if the suite's class has these *facts*.

    ``@needs(transactions=True)`` deselects the case if ``transactions`` is False. On a class, the
    mark applies to the cases that the class itself defines, not to inherited cases.
    """
    need: pytest.MarkDecorator = getattr(pytest.mark, NEEDS)(**facts)

    def marked(case: Case) -> Case:
        cases: list[Any] = [case]
        if isinstance(case, type):
            cases = [one for name, one in vars(case).items() if name.startswith("test_")]
        for one in cases:
            need(one)
        return case

    return marked


def is_meant_for(item: pytest.Item) -> bool:
    """Return whether the class of *item* has all the facts that the case needs."""
    suite: Any = getattr(item, "cls", None)
    return suite is None or all(
        getattr(suite, fact) is wanted
        for marker in item.iter_markers(NEEDS)
        for fact, wanted in marker.kwargs.items()
    )


def find_parts(named: Mapping[str, str]) -> None:
    """Import the functions that the command line *named*; raise UsageError for a bad name."""
    given.update({part: _found(part, name) for part, name in named.items()})


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect cases whose needed facts differ from the facts of the class; skip none."""
    left_out = [item for item in items if not is_meant_for(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_meant_for(item)]


def _found(part: str, name: str) -> Callable[[], Any]:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise pytest.UsageError(f"--timeoutmgr-{part} is MODULE:NAME of a function, got {name!r}")
    found: Callable[[], Any] = getattr(import_module(module), attribute)
    return found
