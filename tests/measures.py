"""Measures of the house: ``python -m tests.measures`` prints them, ``test_measures`` holds them."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Final

from tests import house

Function = ast.FunctionDef | ast.AsyncFunctionDef
Measure = Callable[[], float]
Places = Callable[[], Collection[str]]

TRACED: Final = """
import inspect, json, os, sys, threading, time
from datetime import timedelta
import timeoutmgr
from timeoutmgr.satellites import TimeoutManager

ROOTS = [os.path.realpath(path) for path in timeoutmgr.__path__]
FOLDERS = tuple(
    folder + os.sep
    for root in ROOTS
    for folder in ([root] if os.path.isfile(os.path.join(root, "__init__.py")) else
                   [os.path.join(root, part) for part in ("persistence", "satellites")])
)
entered, begun, ours = set(), set(), {}
counting = threading.Event()

def note(frame, event, _argument):
    if event != "call":
        return
    code = frame.f_code
    if code not in ours:
        is_function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name[0] != "<"
        ours[code] = is_function and os.path.realpath(code.co_filename).startswith(FOLDERS)
    if ours[code]:
        place = (code.co_filename, code.co_qualname)
        (entered if counting.is_set() else begun).add(place)

threading.setprofile(note)
arrived = threading.Event()
config = timeoutmgr.EndpointConfiguration("measured")
config.enable_feature(TimeoutManager())
config.handler("Measured")(lambda message, context: arrived.set())
endpoint = timeoutmgr.Endpoint(config)
endpoint.install()
with endpoint:
    known = -1
    while known < len(begun):  # on a busy machine the start takes longer
        known = len(begun)
        time.sleep(1)
    counting.set()
    sys.setprofile(note)
    endpoint.send_local("Measured", {}, delay=timedelta(seconds=1.5))
    assert arrived.wait(30)
    counting.clear()
    sys.setprofile(None)
print(json.dumps(sorted(entered)))
"""
"""One delayed message from ``send_local`` to its handler, on an embedded file, in all threads."""


def entered(folder: str) -> set[tuple[str, str]]:
    """Return the functions that one delayed message enters, each with its file before it."""
    answer = subprocess.run(
        [sys.executable, "-c", TRACED],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(house.ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=90,
    )
    return {(file, function) for file, function in json.loads(answer.stdout.splitlines()[-1])}


def lines() -> int:
    """Return the lines of all shipped source files, Alembic's revisions included."""
    return sum(len(path.read_text().splitlines()) for path in house.sources())


def files() -> int:
    """Return the number of shipped source files."""
    return len(house.sources())


def rooms() -> list[str]:
    """Return the folders and loose files that are rooms."""
    return sorted({module.room for module in house.modules().values()} - {"__init__"})


def loose_files() -> list[str]:
    """Return the source files directly in the package."""
    return sorted(path.name for path in (house.ROOT / house.PACKAGE).glob("*.py"))


@cache
def functions() -> list[tuple[str, Function]]:
    """Return every function with its place, Alembic's revisions apart."""
    return [
        (f"{module.shown}:{node.lineno} {node.name}", node)
        for module in house.modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, Function)
    ]


def length(function: Function) -> int:
    """Return the lines of *function*, its docstring apart."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def parameters(function: Function) -> int:
    """Return how many parameters *function* has, ``self`` and ``cls`` apart."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def short_share() -> float:
    """Return the share of functions of at most 20 lines, in percent."""
    found = [length(function) for _place, function in functions()]
    return 100 * len([lines for lines in found if lines <= 20]) / len(found)


def longest() -> tuple[int, str]:
    """Return the lines of the longest function, and its place."""
    return max((length(function), place) for place, function in functions())


def many_parameters_share() -> float:
    """Return the share of functions of more than five parameters, in percent."""
    found = [parameters(function) for _place, function in functions()]
    return 100 * len([count for count in found if count > 5]) / len(found)


def gerunds() -> list[str]:
    """Return the modules that are called by a gerund; a participle before a noun is none."""
    names = [module.name.rpartition(".")[2] for module in house.modules().values()]
    ending = re.compile(r"(^|_)[a-z]{2,}ing(_|$)")
    nouns = {"housekeeping", "testing", "string", "routing_key", "fencing_token", "waiting_message"}
    return sorted(name for name in names if ending.search(name) and name not in nouns)


def shared_class_names() -> dict[str, list[str]]:
    """Return the names that several modules give to classes of their own; kombu asks for QoS."""
    found = defaultdict(list)
    for module in house.modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module.name)
    return {name: at for name, at in found.items() if len(at) > 1 and name != "QoS"}


def undocumented() -> list[str]:
    """Return the public classes and functions of the package that have no docstring."""
    found = []
    for module in house.modules().values():
        for owner, node in _definitions(module.tree):
            name = f"{owner}{node.name}"
            if not any(part.startswith("_") for part in name.split(".")) and not (
                ast.get_docstring(node)
            ):
                found.append(f"{module.shown}: {name}")
    return sorted(found)


def knowing_dead_letters() -> list[str]:
    """Return the rooms outside of deadletter whose code names dead letters."""
    said = re.compile(r"dead_?letter", re.IGNORECASE)
    found = set()
    for module in house.modules().values():
        if module.room == "deadletter":
            continue
        for node in ast.walk(module.tree):
            if any(said.search(name) for name in _names(node)):
                found.add(module.room)
                break
    return sorted(found)


NOT_A_PORT: Final = {
    "a dataclass, whose fields are read by their names": (
        *(
            "self",
            "options",
            "which",
            "settings",
            "tables",
            "self._store.tables",
            "self.store.tables",
            "own",
        ),
    ),
    "a driver, a connection of a driver, or a dialect of SQLAlchemy": (
        *("driver", "connection", "self.engine.dialect"),
    ),
    "an error of a driver": ("error", "error.orig", "cause", "refusal"),
    "a module": ("core", "socket", "import_module(", "importlib.import_module("),
    "a part of Spark or pytest": ("spark.sparkContext._jvm", "pytest.mark", "item", "suite"),
    "a callable of a user, for its name": ("given",),
    "an object of a user, for the methods that a refusal names": ("stranger",),
}
"""Objects that are asked by name, as the source spells them, and why they are no port of ours."""


def asked_by_name() -> list[str]:
    """Return the places that ask a port for an ability by ``getattr`` or ``hasattr``."""
    foreign = {spelt for spellings in NOT_A_PORT.values() for spelt in spellings}
    found = []
    for module in house.modules().values():
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Name(id="getattr" | "hasattr" as name), args=[asked, *_]):
                    spelt = ast.unparse(asked)
                    if spelt not in foreign and spelt.partition("(")[0] + "(" not in foreign:
                        found.append(f"{module.shown}:{node.lineno} {name} of {spelt}")
    return found


def without_fields() -> list[str]:
    """Return the log calls of the package that give no fields by ``extra=``."""
    levels = ("debug", "info", "warning", "error", "exception", "critical", "log")
    found = []
    for module in house.modules().values():
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="logger"), attr=level), keywords=given
                ) if level in levels and not any(one.arg == "extra" for one in given):
                    found.append(f"{module.shown}:{node.lineno}")
    return found


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
            yield name
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name):
            yield name
        case ast.ImportFrom(module=str(name)):
            yield name


def _definitions(
    tree: ast.Module,
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | Function):
            yield "", node
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, Function) and not _needs_none(inner):
                    yield f"{node.name}.", inner


def _needs_none(method: Function) -> bool:
    """Return whether another text describes *method*: a getter, an overload, a test's name."""
    if method.name.startswith("test_"):
        return True
    names = {ast.unparse(one).rpartition(".")[2] for one in method.decorator_list}
    return bool(names & {"overload", "setter", "override"})


def main() -> None:
    """Print every measure."""
    short, worst = short_share(), longest()
    for name, value in (
        ("rooms", len(rooms())),
        ("loose files", len(loose_files())),
        ("circles of modules, rooms, folders", [len(found) for found in _circles()]),
        ("imports against the table", len(house.offences())),
        ("shipped lines", lines()),
        ("shipped files", files()),
        ("functions of at most 20 lines, %", round(short, 1)),
        ("longest function", worst),
        ("functions of more than 5 parameters, %", round(many_parameters_share(), 2)),
        ("gerund modules", len(gerunds())),
        ("class names with two meanings", len(shared_class_names())),
        ("getattr and hasattr on ports", len(asked_by_name())),
        ("log lines without fields", len(without_fields())),
        ("public definitions without a docstring", len(undocumented())),
        ("rooms that know dead letters", knowing_dead_letters()),
    ):
        print(f"{name}: {value}")


def _circles() -> tuple[list[list[str]], ...]:
    return house.module_circles(), house.room_circles(), house.folder_circles()


if __name__ == "__main__":
    main()
