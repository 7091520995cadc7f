"""A faster and quieter start of Spark: a connection check, an unpacked home, held-back stderr."""

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.errors import PipelineUnavailable

logger = logging.getLogger(__name__)

# --- A check of the server before Spark starts, since Spark itself would try for minutes ------

_PATIENCE: Final = 5.0
_STANDALONE: Final = "spark://"
_CONNECT: Final = "sc://"
_CONNECT_PORT: Final = 15002

Address = tuple[str, int]


def require_answer(url: str, patience: float = _PATIENCE) -> None:
    """Raise PipelineUnavailable if *url* accepts no connection within *patience* seconds.

    *url* names standalone masters (one of them must answer) or a Spark Connect server; other
    masters report errors themselves.
    """
    reasons = []
    for host, port in addresses(url):
        try:
            socket.create_connection((host, port), timeout=patience).close()
        except OSError as error:
            reasons.append(f"{host}:{port} ({error})")
        else:
            return
    if reasons:
        raise PipelineUnavailable(
            f"no Spark answers at {shown(url)}: {', '.join(reasons)}. Start it, or name where it "
            "runs; without --master and --remote Spark runs on this machine"
        )


def shown(url: str) -> str:
    """Return *url* without its parameters, which may contain a token."""
    return url.partition("/;")[0]


def addresses(url: str) -> list[Address]:
    """Return the hosts and ports that *url* names; none for another kind of master."""
    for scheme, default in ((_STANDALONE, None), (_CONNECT, _CONNECT_PORT)):
        if url.startswith(scheme):
            places = url.removeprefix(scheme).partition("/")[0]
            return [_address(url, place, default) for place in places.split(",")]
    return []


def _address(url: str, place: str, default: int | None) -> Address:
    host, colon, port = place.rpartition(":")
    if not colon and default is not None:
        host, port = place, str(default)
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigurationError(
            f"{shown(url)!r} names no host and port; expected such as host:7077"
        )
    return host.strip("[]"), int(port)


_AS_THEY_ARE: Final = ("bin", "jars")
_ARCHIVES: Final = Path("python", "lib")
_UNPACKED: Final = {"pyspark": "pyspark*.zip", "py4j": "py4j-*-src.zip"}
"""For each package, the name pattern of Spark's archive of it."""


def unpacked_home(folder: Path) -> Path | None:
    """Return a SPARK_HOME made in *folder*, of links to the pyspark that this process uses.

    Spark makes each Python that it starts import pyspark from an archive. Python keeps no compiled
    code for archives, so each of the six processes of a job compiles pyspark anew, in 0.2 s of the
    0.5 s of a start. Also, each worker reads the archive's table of contents again for each task.

    In this home, folders with the same packages replace the archives under the same names: workers
    import the same files as their driver. None if Spark has another layout, or links fail.
    """
    import py4j
    import pyspark

    packages = {one.__name__: Path(str(one.__file__)).absolute().parent for one in (pyspark, py4j)}
    installed = packages["pyspark"]
    archives = {
        name: archive
        for name, pattern in _UNPACKED.items()
        for archive in (installed / _ARCHIVES).glob(pattern)
    }
    is_known = all((installed / name).is_dir() for name in _AS_THEY_ARE)
    if not is_known or archives.keys() != packages.keys():
        return None
    home = folder / "spark"
    try:
        home.mkdir()
        for name in _AS_THEY_ARE:
            (home / name).symlink_to(installed / name, target_is_directory=True)
        for name, archive in archives.items():
            instead = home / _ARCHIVES / archive.name
            instead.mkdir(parents=True)
            (instead / name).symlink_to(packages[name], target_is_directory=True)
    except OSError as error:  # Windows does not let every user create links
        logger.info(
            "pipeline reads Python's packages from Spark's archives: %s",
            error,
            extra={"event": "spark_reads_archives"},
        )
        return None
    return home


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back standard error of this process and its children; write it out on failure.

    The JVM always writes the same four lines when it starts.

    Processes that are started inside keep writing to the held-back stream. The JVM and its workers
    write the texts of their exceptions there; ``SessionOptions.verbose`` shows them.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            _give_back(kept)
            held.seek(0)
            os.write(2, held.read())
            raise
        _give_back(kept)


def _give_back(kept: int) -> None:
    sys.stderr.flush()
    os.dup2(kept, 2)
    os.close(kept)
