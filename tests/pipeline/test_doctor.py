from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from timeoutmgr.contracts.reports import Level
from timeoutmgr.pipeline import doctor
from timeoutmgr.pipeline.spark.session import SessionOptions


@pytest.mark.parametrize("there", ["pyspark", "pyspark-client"])
def test_a_server_elsewhere_is_talked_to_with_either_package(
    monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    def version(name: str) -> str:
        if name.startswith("pyspark") and name != there:
            raise PackageNotFoundError(name)
        return "4.2.0"

    monkeypatch.setattr(doctor, "version", version)

    found = list(doctor.examine(SessionOptions(remote="sc://127.0.0.1:1"), None))

    levels = {one.check: one.level for one in found}
    assert levels[there] is Level.OK
    assert levels["spark"] is Level.FAIL  # no server answers there
    assert "java" not in levels


def test_without_spark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", version)
    client = next(doctor.examine(SessionOptions(remote="sc://127.0.0.1:1"), None))
    whole = next(doctor.examine(SessionOptions(), None))

    assert (client.check, client.remedy) == (
        "pyspark-client",
        "pip install 'timeoutmgr[spark-client]'",
    )
    assert (whole.check, whole.remedy) == ("pyspark", "pip install 'timeoutmgr[spark]'")
