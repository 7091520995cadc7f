"""The layout keeps its word: all that runs in a checkout is also in the wheel."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TREES = {
    "timeoutmgr": "timeoutmgr",
    "persistence": "timeoutmgr.persistence",
    "satellites": "timeoutmgr.satellites",
}


def _setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def _named_packages() -> list[str]:
    return _setup()["options"]["packages"].split()


def _files() -> list[Path]:
    """Return the files below the three folders, relative to the root."""
    return [
        path.relative_to(ROOT)
        for tree in TREES
        for path in sorted((ROOT / tree).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]


def _package_of(path: Path) -> str:
    """Return the dotted name of the folder that *path* is in, as users import it."""
    tree, *inner = path.parent.parts
    return ".".join([TREES[tree], *inner])


def _in_wheel(path: Path) -> str:
    """Return where *path* stands in a wheel."""
    tree, *inner = path.parts
    return "/".join([*TREES[tree].split("."), *inner])


def test_setup_cfg_names_every_package() -> None:
    packages = {_package_of(path) for path in _files() if path.name == "__init__.py"}

    assert sorted(_named_packages()) == sorted(packages)


def test_the_wheel_leaves_chaos_and_all_else_beside_the_package_out() -> None:
    assert (ROOT / "chaos" / "__init__.py").exists()
    assert {name.partition(".")[0] for name in _named_packages()} == {"timeoutmgr"}


def test_setup_cfg_names_packages_in_order_and_once() -> None:
    named = _named_packages()

    assert named == sorted(set(named))


def test_every_module_stands_in_a_package() -> None:
    named = _named_packages()
    lost = [
        str(path) for path in _files() if path.suffix == ".py" and _package_of(path) not in named
    ]

    assert lost == []


def test_setup_cfg_names_every_module_beside_the_packages() -> None:
    modules = [path.stem for path in sorted(ROOT.glob("*.py"))]

    assert _setup()["options"]["py_modules"].split() == modules


def test_the_metadata_name_the_licence_file() -> None:
    metadata = _setup()["metadata"]
    text = (ROOT / metadata["license_files"]).read_text()

    assert metadata["license_expression"] == "Apache-2.0"
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


@pytest.mark.slow
def test_the_wheel_holds_every_file_and_imports_by_itself(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy: setuptools leaves a build folder behind
    source.mkdir()
    modules = [f"{name}.py" for name in _setup()["options"]["py_modules"].split()]
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", *modules):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    for tree in TREES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / tree, source / tree, ignore=ignored)

    built = _run("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("timeoutmgr-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    imported = _run(
        "-c",
        "import timeoutmgr.satellites, timeoutmgr.persistence as p; print(p.__file__)",
        PYTHONPATH=str(wheel),
        cwd=tmp_path,
    )

    assert held == {*modules, *(_in_wheel(path) for path in _files())}
    assert imported.returncode == 0, imported.stderr
    assert str(wheel) in imported.stdout


def _run(*words: object, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
