"""The loop of a poller, which ends with its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.satellites.polling import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.poller.stop()
