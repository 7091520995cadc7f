"""Properties are tried as ``tests.support.properties`` says; a poller's loop ends with its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tests.support.properties  # noqa: F401 - read before the tests are
from tests.satellites.polling import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.poller.stop()
