"""The house: its modules, the rooms that they are in, and which room may import which.

``python -m tests.house`` writes the table and the picture of the rooms into
``docs/explanation/architecture.md``.
"""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = "timeoutmgr"
PARTS: Final = ("persistence", "satellites")
"""Rooms that are folders beside the package in a checkout, and inside of it in a wheel."""

ANY: Final = "any"
LOOSE: Final = ("errors", "clock", "plugins", "telemetry", "crashpoints", "_version")
"""Files that every room but message may import; they import message and errors only."""
DOORS: Final = ("__init__", "__main__")
"""Files that may import any room."""

MAY_IMPORT: Final[Mapping[str, tuple[str, ...]]] = {
    "message": (),
    "contracts": ("message",),
    "database": ("contracts+",),
    "resilience": ("contracts+",),
    "transport": ("database+", "resilience+"),
    "sender": ("transport+",),
    "recurrence": ("resilience+",),
    "features": ("transport+",),
    "native": ("features+",),
    "deadletter": ("features+",),
    "endpoint": ("sender+", "features+", "recurrence+"),
    "settings": ("endpoint+",),
    "migration": ("settings+", "native+"),
    "pipeline": ("migration+",),
    "testing": ("settings+",),
    "persistence": ("database+", "resilience+"),
    "satellites": ("sender+", "native+"),
    "contrib": (ANY,),
    "web": (ANY,),
    "metrics": (ANY,),
    "cli": (ANY,),
}
"""Rooms that each room may import; with a plus, also all that the named room may import."""

TOPMOST: Final = ("contrib", "web", "metrics", "cli")
"""Rooms that may import any other but testing and each other; cli may import the other three."""
PURE_MIGRATION: Final = ("ports", "runs", "states", "window")
"""Modules of migration that persistence may import as well."""


@dataclass
class Module:
    """One source file of the package, under the name by which it is imported."""

    name: str
    path: Path
    imports: dict[str, int] = field(default_factory=dict)
    """The modules that it imports, with the line of the first import."""

    @property
    def is_package(self) -> bool:
        """Whether it is the ``__init__`` of a folder."""
        return self.path.name == "__init__.py"

    @property
    def shown(self) -> str:
        """Its path in a checkout."""
        return str(self.path.relative_to(ROOT))

    @property
    def room(self) -> str:
        """The room that it is in; a loose file is a room by itself."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    @property
    def folder(self) -> str:
        """The folder directly in its room, or the module itself."""
        return ".".join(self.name.split(".")[:3])

    @property
    def tree(self) -> ast.Module:
        """Its source, parsed."""
        return trees()[self.path]


@cache
def trees() -> Mapping[Path, ast.Module]:
    """Return the syntax tree of every shipped source file.

    The trees take 130 MB and live as long as the process: the garbage collector would look at all
    of their nodes again and again, which takes longer than to parse them.
    """
    gc.disable()
    try:
        return {path: ast.parse(path.read_text(), str(path)) for path in sources()}
    finally:
        gc.freeze()
        gc.enable()


@cache
def modules() -> Mapping[str, Module]:
    """Return every module of the package by name, Alembic's revisions apart."""
    found = {}
    for folder in (PACKAGE, *PARTS):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "versions" not in path.parts:
                module = Module(_name(path), path)
                found[module.name] = module
    for module in found.values():
        for line, package, name in _imported(module):
            source = _defining(found, package, name)
            if source is not None and source != module.name:
                module.imports.setdefault(source, line)
    return found


def sources() -> list[Path]:
    """Return every shipped source file, Alembic's revisions included."""
    return [path for folder in (PACKAGE, *PARTS) for path in sorted((ROOT / folder).rglob("*.py"))]


def allowed(room: str) -> set[str]:
    """Return the rooms that *room* may import, itself included."""
    if room in DOORS:
        return {*MAY_IMPORT, *LOOSE, *DOORS}
    if room in LOOSE:
        return {room, "message", "errors"}
    if room == "message":
        return {"message", "errors"}
    return {*LOOSE, *_closure(room)}


def offences() -> list[str]:
    """Return each import that the table does not allow, as ``importer: imported``."""
    return [
        f"{module.shown}: {imported}"
        for module in modules().values()
        for imported in sorted(module.imports)
        if not _may(module, modules()[imported])
    ]


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the sets of names that reach each other along *edges*, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges.get(name, ()):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            circle = [stack.pop()]
            while circle[-1] != name:
                circle.append(stack.pop())
            if len(circle) > 1:
                found.append(sorted(circle))

    for name in sorted(edges):
        if name not in index:
            visit(name)
    return sorted(found)


def module_circles() -> list[list[str]]:
    """Return the circles among modules, re-exporting packages apart."""
    return circles(_edges(lambda module: module.name))


def room_circles() -> list[list[str]]:
    """Return the circles among rooms."""
    return circles(_edges(lambda module: module.room))


def folder_circles() -> list[list[str]]:
    """Return the circles among the folders of a room; a file beside them counts as a folder."""
    folders = {module.folder for module in modules().values() if module.name.count(".") > 2}

    def place(module: Module) -> str:
        return module.folder if module.folder in folders else module.name

    return [
        circle
        for circle in circles(_edges(place))
        if len({name.split(".")[1] for name in circle}) == 1 and folders.intersection(circle)
    ]


def _edges(place: object) -> Mapping[str, set[str]]:
    assert callable(place)
    edges: dict[str, set[str]] = defaultdict(set)
    for module in modules().values():
        if module.is_package:
            continue
        here = place(module)
        for imported in module.imports:
            other = modules()[imported]
            if not other.is_package and place(other) != here:
                edges[here].add(place(other))
    return edges


def _may(module: Module, imported: Module) -> bool:
    if imported.room in allowed(module.room):
        return True
    pure = {f"{PACKAGE}.migration.{name}" for name in PURE_MIGRATION}
    return module.room == "persistence" and imported.name in pure


def _closure(room: str) -> set[str]:
    if room not in MAY_IMPORT:
        return {room}
    if MAY_IMPORT[room] == (ANY,):
        others = {other for other in TOPMOST if other != room and room != "cli"}
        return {*MAY_IMPORT} - others - {"testing"}
    found = {room}
    for name in MAY_IMPORT[room]:
        found |= _closure(name.removesuffix("+")) if name.endswith("+") else {name}
    return found


def _name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in PARTS:
        parts.insert(0, PACKAGE)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def _imported(module: Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, package and name of every import, also inside functions and for type checkers."""
    package = module.name.split(".")
    if not module.is_package:
        package.pop()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                above, _, name = alias.name.rpartition(".")
                yield node.lineno, above, name
        elif isinstance(node, ast.ImportFrom):
            above_it = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above_it, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, origin, alias.name


def _defining(found: Mapping[str, Module], package: str, name: str) -> str | None:
    """Return the module that defines *name* of *package*, None if that is not the product's."""
    if f"{package}.{name}" in found:
        return f"{package}.{name}"
    if package not in found:
        return None
    for _line, origin, exported in _imported(found[package]) if found[package].is_package else ():
        if exported == name:
            return _defining(found, origin, name)
    return package


PAGE: Final = ROOT / "docs" / "explanation" / "architecture.md"
BEGIN: Final = "<!-- rooms: written by python -m tests.house -->"
END: Final = "<!-- end of rooms -->"


def written(page: str) -> str:
    """Return the text of *page* with the table and the picture of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{_table()}\n\n{_picture()}\n{END}{after}"


def _table() -> str:
    rows = ["| room | may import |", "|---|---|"]
    for room, others in MAY_IMPORT.items():
        if others == (ANY,):
            apart = (
                "testing" if room == "cli" else f"testing, {', '.join(sorted({*TOPMOST} - {room}))}"
            )
            rows.append(f"| {room} | all other rooms but {apart} |")
        else:
            rows.append(f"| {room} | {', '.join(others) or 'errors'} |")
    return "\n".join(rows)


def _picture() -> str:
    """Return the rooms that are there as a Mermaid graph: an arrow leads to a room below."""
    there = {module.room for module in modules().values()}
    lines = ["```mermaid", "flowchart TD"]
    for room, others in MAY_IMPORT.items():
        if room in there:
            below = (
                ["pipeline", "deadletter", "satellites", "persistence"]
                if others == (ANY,)
                else others
            )
            lines += [f"    {room} --> {other.removesuffix('+')}" for other in below]
    return "\n".join([*lines, "```"])


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
