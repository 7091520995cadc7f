"""On which pairs of transport and store a test is run."""

from __future__ import annotations

import pytest

from tests.acceptance.matrix import Pair


def on(*pairs: Pair) -> pytest.MarkDecorator:
    """Run a test once on each of *pairs*, through the fixture ``place``."""
    return pytest.mark.parametrize("place", pairs, ids=[pair.id for pair in pairs], indirect=True)
