"""What a suite says of the part it is run on, and what a case asks for."""

from __future__ import annotations

from typing import Any, Final

import pytest

NEEDS: Final = "timeoutmgr_needs"


def needs(**facts: bool) -> pytest.MarkDecorator:
    """Mark a case that means something only where the suite's class has these *facts*.

    ``@needs(transactions=True)`` leaves the case out where ``transactions`` is False.
    """
    return getattr(pytest.mark, NEEDS)(**facts)  # type: ignore[no-any-return]  # marks are dynamic


def is_meant_for(item: pytest.Item) -> bool:
    """Return whether the class of *item* has all the facts that the case needs."""
    suite: Any = getattr(item, "cls", None)
    return suite is None or all(
        getattr(suite, fact) is wanted
        for mark in item.iter_markers(NEEDS)
        for fact, wanted in mark.kwargs.items()
    )
