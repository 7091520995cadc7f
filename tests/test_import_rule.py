"""Arrows point inward: which imports each room may have, read from each module's source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import house

ROOT = Path(__file__).parent.parent
PARTS = ("persistence", "satellites")


def _sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, f"no modules in {folders}"
    return found


def _imported(path: Path) -> Iterator[str]:
    """Yield the absolute names that *path* imports anywhere, relative imports resolved."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    if package[0] in PARTS:
        package = ("timeoutmgr", *package)
    tree = house.trees().get(path) or ast.parse(path.read_text(), str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *((node.module,) if node.module else ())))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _is_of(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _offences(folders: tuple[str, ...], banned: tuple[str, ...], but_in: str = "-") -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _sources(*folders)
        if not path.is_relative_to(ROOT / but_in)
        for name in _imported(path)
        if any(_is_of(name, package) for package in banned)
    ]


def test_each_room_imports_only_allowed_rooms() -> None:
    assert house.offences() == []


def test_no_modules_rooms_or_folders_import_each_other_in_a_circle() -> None:
    found = [*house.module_circles(), *house.room_circles(), *house.folder_circles()]

    assert found == []


def test_the_architecture_page_shows_the_table() -> None:
    page = house.PAGE.read_text()

    assert house.written(page) == page, "run python -m tests.house"


def test_a_circle_is_found_however_long_it_is() -> None:
    edges = {
        "a": {"b"},
        "b": {"c"},
        "c": {"a", "d"},
        "d": {"e"},
        "e": set(),
        "f": {"g"},
        "g": {"f"},
    }

    assert house.circles(edges) == [["a", "b", "c"], ["f", "g"]]


def test_the_core_imports_no_part() -> None:
    banned = (*PARTS, *(f"timeoutmgr.{part}" for part in PARTS))

    assert _offences(("timeoutmgr",), banned) == []


def test_no_import_names_a_bare_part() -> None:
    assert _offences((*PARTS, "tests", "benchmarks", "examples"), PARTS) == []


@pytest.mark.parametrize(("part", "other"), [PARTS, PARTS[::-1]])
def test_a_part_does_not_import_the_other(part: str, other: str) -> None:
    assert _offences((part,), (f"timeoutmgr.{other}",)) == []


@pytest.mark.parametrize("part", PARTS)
def test_a_part_imports_its_siblings_relatively_and_the_core_by_its_full_name(part: str) -> None:
    wrong = []
    for path in _sources(part):
        depth = len(path.relative_to(ROOT).parts) - 1
        folder = ".".join(("timeoutmgr", *path.relative_to(ROOT).parts[:-1]))
        for node in ast.walk(house.trees()[path]):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""] if node.level == 0 else []
                if node.level > depth:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} reaches the core by dots")
            else:
                continue
            # From a folder above, the full name is right: the linter allows no "from .. import".
            if any(_is_of(name, folder) for name in names):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} names a sibling in full")

    assert wrong == []


def test_only_the_transport_speaks_kombu() -> None:
    """Beside it, the room for Celery prepares messages as kombu does, for kombu's consumers."""
    folders = ("timeoutmgr", *PARTS)
    found = _offences(folders, ("kombu", "amqp"), but_in="timeoutmgr/transport")

    assert [each for each in found if not each.startswith("timeoutmgr/contrib/celery/")] == []


def test_only_the_satellites_have_a_scheduler() -> None:
    folders = ("timeoutmgr", *PARTS)

    found = _offences(folders, ("apscheduler",), but_in="satellites")
    # Recurrence asks the triggers for instants, and runs no scheduler.
    place = "timeoutmgr/recurrence/occurrences.py imports apscheduler.triggers."

    assert [one for one in found if not one.startswith(place)] == []
