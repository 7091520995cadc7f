"""The server of metrics and probes begins at an address of this host, and asks no other host."""

from __future__ import annotations

import socket

import pytest

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.metrics.memory import CountMemory
from timeoutmgr.metrics.server import serving


def test_the_server_begins_without_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(socket, "getfqdn", asked.append)

    with serving("127.0.0.1", 0, CountMemory.create(1), "shop"):
        pass

    assert asked == []


@pytest.mark.parametrize("host", ["ü" * 70, "192.0.2.1"], ids=["too long", "elsewhere"])
def test_an_address_of_no_host_here_is_refused_with_the_remedy(host: str) -> None:
    with (
        pytest.raises(ConfigurationError, match=f"--metrics-address {host}:0 cannot be used"),
        serving(host, 0, CountMemory.create(1), "shop"),
    ):
        raise AssertionError
