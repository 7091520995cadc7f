"""The two fixtures that the testing kit uses, and a session for the tests."""

from collections.abc import Iterator

import pytest
import shop
from sqlalchemy import MetaData
from sqlalchemy.orm import Session

from timeoutmgr import EndpointConfiguration
from timeoutmgr.testing import TimeoutKit


@pytest.fixture
def timeoutmgr_config() -> EndpointConfiguration:
    return shop.config


@pytest.fixture
def timeoutmgr_database() -> MetaData:
    return shop.Base.metadata


@pytest.fixture
def session(timeouts: TimeoutKit) -> Iterator[Session]:
    with Session(timeouts.engine) as session:
        yield session
