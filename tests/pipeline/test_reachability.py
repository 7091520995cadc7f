from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline import SessionOptions, spark_session
from timeoutmgr.pipeline.errors import PipelineUnavailable
from timeoutmgr.pipeline.spark.startup import addresses, require_answer


@pytest.fixture
def open_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as held:  # bound, so that no other process gets it, and not listening
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize(
    "options_of",
    [
        lambda place: SessionOptions(master=f"spark://{place}"),
        lambda place: SessionOptions(remote=f"sc://{place}"),
    ],
    ids=["master", "remote"],
)
def test_a_silent_server_is_reported_before_java_starts(
    options_of: Callable[[str], SessionOptions], closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import SparkSession

    def starts(_wanted: object) -> None:
        raise AssertionError("Java was looked for")

    monkeypatch.setattr(SparkSession, "getActiveSession", staticmethod(lambda: None))
    monkeypatch.setattr("timeoutmgr.pipeline.spark.session.find_java", starts)

    with (
        pytest.raises(PipelineUnavailable, match=f"127.0.0.1:{closed_port}.*refused.*Start it"),
        spark_session(options_of(f"127.0.0.1:{closed_port}")),
    ):
        pass


def test_one_reachable_master_of_several_is_enough(open_port: int, closed_port: int) -> None:
    require_answer(f"spark://127.0.0.1:{closed_port},127.0.0.1:{open_port}")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("local[*,3]", []),
        ("yarn", []),
        ("k8s://https://host:6443", []),
        ("spark://a:7077", [("a", 7077)]),
        ("spark://a:7077,b:7078", [("a", 7077), ("b", 7078)]),
        ("spark://[::1]:7077", [("::1", 7077)]),
        ("sc://a", [("a", 15002)]),
        ("sc://a:1/;user_id=me;token=x", [("a", 1)]),
    ],
)
def test_an_address_is_read_as_spark_reads_it(url: str, expected: list[tuple[str, int]]) -> None:
    assert addresses(url) == expected


@pytest.mark.parametrize("url", ["spark://", "spark://a", "spark://:7077", "spark://a:x", "sc://"])
def test_an_address_without_host_or_port_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="host:7077"):
        addresses(url)
