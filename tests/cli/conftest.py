"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.forkserver_client import ForkServer
from tests.cli.programs import Folder

SETTINGS = """\
endpoint = "{endpoint}"
features = ["timeout-manager"]
"""

APP = """\
from datetime import timedelta
from pathlib import Path
from timeoutmgr import EndpointConfiguration, RecoverabilitySettings
from timeoutmgr.satellites import TimeoutManager

config = EndpointConfiguration("{endpoint}")
config.recoverability = RecoverabilitySettings(immediate=2, delayed=0)
config.enable_feature(TimeoutManager(time_to_wait_before_critical_error=timedelta(0)))

@config.handler("Hello")
def hello(message, context):
    print("handled", message, flush=True)

@config.handler("Fragile")
def fragile(message, context):
    if not Path("mended").exists():
        raise ValueError("broken as yet")
    print("handled", message, flush=True)


def logging():
    config.critical_error_action = "log"
    return config
"""


@pytest.fixture
def folder(tmp_path: Path, unique: str, fork_server: ForkServer) -> Iterator[Folder]:
    """A folder with ``timeoutmgr.toml`` and ``app.py``; its programs are ended with the test."""
    made = Folder(tmp_path, unique, fork_server)
    made.write("timeoutmgr.toml", SETTINGS.format(endpoint=unique))
    made.write("app.py", APP.format(endpoint=unique))
    yield made
    made.close()
