"""A home for Spark in which Python's packages lie unpacked, as they are installed.

Spark has each Python that it starts import pyspark from an archive of its own. Python keeps nothing
of what it compiles from an archive, so that each of the six processes that a job has started
compiles it anew, in 0.2 s of the 0.5 s that it takes to start. And each worker reads the archive's
table of contents again with each task.
"""

import logging
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_AS_THEY_ARE: Final = ("bin", "jars")
_ARCHIVES: Final = Path("python", "lib")
_UNPACKED: Final = {"pyspark": "pyspark*.zip", "py4j": "py4j-*-src.zip"}
"""Which package each of the archives holds."""


def unpacked_home(folder: Path) -> Path | None:
    """Return a SPARK_HOME made in *folder*, of links to the pyspark that this process uses.

    Under the names of the archives are folders that hold the same packages: workers import what
    their driver has imported. None where Spark is not laid out so, or no links can be made.
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
    except OSError as error:  # Windows lets not everybody make links
        logger.info("Python's packages are read from Spark's archives: %s", error)
        return None
    return home
