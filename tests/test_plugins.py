from __future__ import annotations

import sys
from importlib.metadata import EntryPoints
from pathlib import Path

import pytest

from timeoutmgr import Endpoint, plugins
from timeoutmgr.errors import UnknownPart
from timeoutmgr.settings.file import configuration_from


@pytest.mark.parametrize(("group", "name"), sorted(plugins.BUILT_IN))
def test_every_part_of_the_table_loads_from_a_checkout(group: str, name: str) -> None:
    assert callable(plugins.load(group, name))


@pytest.mark.parametrize(
    ("group", "wrong", "meant"),
    [
        (plugins.PERSISTENCE, "postgres", "postgresql"),
        (plugins.PERSISTENCE, "sqlit", "sqlite"),
        (plugins.FEATURES, "timeout_manager", "timeout-manager"),
        (plugins.TRANSPORTS, "mysqls", "mysql"),
    ],
)
def test_a_misspelt_part_is_refused_with_the_nearest_name(
    group: str, wrong: str, meant: str
) -> None:
    with pytest.raises(UnknownPart, match=f"did you mean {meant!r}") as refused:
        plugins.load(group, wrong)

    assert (refused.value.name, refused.value.suggestion) == (wrong, meant)


def test_a_part_like_no_other_is_refused_with_all_names() -> None:
    with pytest.raises(
        UnknownPart, match=r"known: mariadb, memory, mssql, mysql, postgresql, sqlite"
    ):
        plugins.load(plugins.PERSISTENCE, "xyzzy")


def test_a_refusal_names_the_entry_point_group_for_third_parties() -> None:
    with pytest.raises(UnknownPart, match=r"entry point group 'timeoutmgr\.persistence'"):
        plugins.load(plugins.PERSISTENCE, "xyzzy")


def test_names_are_sorted_and_unique() -> None:
    found = plugins.names(plugins.PERSISTENCE)

    assert found == sorted(set(found))


def test_installed_packages_are_looked_through_once_for_each_path_of_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []

    def find() -> EntryPoints:
        looked.append(len(sys.path))
        return EntryPoints()

    monkeypatch.setattr(plugins, "entry_points", find)
    monkeypatch.setattr(sys, "path", [*sys.path, "/no/such/folder"])
    for group in (plugins.FEATURES, plugins.TRANSPORTS):
        plugins.names(group)
    monkeypatch.setattr(sys, "path", [*sys.path, "/another"])
    plugins.names(plugins.FEATURES)

    assert looked == [len(sys.path) - 1, len(sys.path)]


def test_a_program_of_our_parts_alone_looks_through_no_installed_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def find() -> EntryPoints:
        raise AssertionError("our parts are in a table")

    monkeypatch.setattr(plugins, "entry_points", find)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    settings = tmp_path / "timeoutmgr.toml"
    settings.write_text(
        f"""
        endpoint = "sales"
        transport = "sqlite:///{tmp_path}/sales.db"
        persistence = "sqlite:///{tmp_path}/sales.db"
        features = ["timeout-manager"]
        [timeout-manager]
        concurrency = 2
        [persistence_options]
        max_in_flight = 10
        """
    )
    Endpoint(configuration_from(settings, environ={"TIMEOUTMGR_CONCURRENCY": "3"})).close()
