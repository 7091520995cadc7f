"""The layout keeps its word: all that runs in a checkout is also in the wheel."""

from __future__ import annotations

import configparser
import os
import re
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


def _requirements(extra: str) -> set[str]:
    """Return the packages that *extra* brings, those of the extras that it names among them."""
    found: set[str] = set()
    for line in _setup()["options.extras_require"][extra].split("\n"):
        inner = re.fullmatch(r"timeoutmgr\[(.+)\]", line)
        found |= _requirements(inner[1]) if inner else set(line.split()[:1])
    return found


def test_a_host_that_brings_its_spark_gets_all_of_the_pipeline_but_spark() -> None:
    provided = _requirements("spark-provided")

    assert _requirements("spark") - provided == {"pyspark"}
    assert _requirements("spark-client") - provided == {"pyspark-client"}
    assert "pyarrow" in provided


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


@pytest.mark.slow
def test_two_builds_have_one_digest(tmp_path: Path) -> None:
    built = _run(".ci/dist", "--no-install", "--out", tmp_path / "dist")

    assert built.returncode == 0, built.stderr
    assert sorted(path.suffix for path in (tmp_path / "dist").iterdir()) == [".gz", ".whl"]


def test_later_fragments_join_the_section_of_the_first_release(tmp_path: Path) -> None:
    folder, changelog = tmp_path / "changelog.d", tmp_path / "CHANGELOG.md"
    folder.mkdir()
    changelog.write_text(
        "# Changes\n\n## 0.1.0 (2026-01-01)\n\nFirst.\n\n### Security\n\n* Safe.\n"
    )
    for name in ("1.added.a.md", "2.fixed.b.md", "3.security.c.md"):
        (folder / name).write_text(f"Text of {name}.\n")

    _run(".ci/changelog", "0.1.0", "--write", "--root", tmp_path)

    assert changelog.read_text() == (
        "# Changes\n\n## 0.1.0 (2026-01-01)\n\nFirst.\n\n### Security\n\n* Safe.\n"
        "* Text of 3.security.c.md.\n\n### Added\n\n* Text of 1.added.a.md.\n"
    )
    assert list(folder.iterdir()) == []


def test_the_changelog_has_a_section_of_the_version_and_names_its_tag() -> None:
    version = re.findall(r'"(\d+\..*)"', (ROOT / "timeoutmgr" / "_version.py").read_text())[0]
    text = (ROOT / "CHANGELOG.md").read_text()

    assert f"\n## {version} (" in text
    assert f"`v{version}`" in text


def test_the_changelog_is_compiled_from_its_fragments(tmp_path: Path) -> None:
    folder, changelog = tmp_path / "changelog.d", tmp_path / "CHANGELOG.md"
    folder.mkdir()
    changelog.write_text("# Changes\n\nA sentence.\n\n## 0.0.9 (2026-01-01)\n\n* Before.\n")
    (folder / "README.md").write_text("How to write a fragment.\n")
    for name, text in {
        "20.fixed.b.md": "Third,\non two lines.\n",
        "3.added.md": "First.\n",
        "20.added.a.md": "Second.\n",
    }.items():
        (folder / name).write_text(text)

    done = _run(".ci/changelog", "0.1.0", "--write", "--root", tmp_path)

    today, *rest = re.sub(r"\d{4}-\d\d-\d\d", "DAY", changelog.read_text()).split("## 0.0.9")
    assert done.returncode == 0, done.stderr
    assert today == (
        "# Changes\n\nA sentence.\n\n## 0.1.0 (DAY)\n\n### Added\n\n* First.\n* Second.\n\n"
        "### Fixed\n\n* Third,\n  on two lines.\n\n"
    )
    assert rest == [" (DAY)\n\n* Before.\n"]
    assert [path.name for path in folder.iterdir()] == ["README.md"]


def test_a_fragment_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "9.improved.x.md").write_text("More.\n")

    done = _run(".ci/changelog", "0.1.0", "--root", tmp_path)

    assert done.returncode == 1
    assert "9.improved.x.md: expected <issue>.<security|added" in done.stderr


def _run(*words: object, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
