from __future__ import annotations

import sys
from importlib.metadata import EntryPoints

import pytest

from timeoutmgr import plugins
from timeoutmgr.errors import UnknownPart


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
    looked: list[str] = []

    def find(*, group: str) -> EntryPoints:
        looked.append(group)
        return EntryPoints()

    monkeypatch.setattr(plugins, "entry_points", find)
    monkeypatch.setattr(sys, "path", [*sys.path, "/no/such/folder"])
    for _ in range(2):
        plugins.names(plugins.FEATURES)
    monkeypatch.setattr(sys, "path", [*sys.path, "/another"])
    plugins.names(plugins.FEATURES)

    assert looked == [plugins.FEATURES] * 2
