"""The class archive: a file with Spark's classes in Java's in-memory format.

Half of a start of Spark is spent on ten thousand classes, which Java reads, checks and links each
time. A Java that shares class data (JEP 350) maps a file instead. It uses the file only with the
same build and the same jars with which the file was made; otherwise it starts without the file.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.errors import PipelineUnavailable
from timeoutmgr.pipeline.spark.java import Java, cache_folder
from timeoutmgr.pipeline.spark.startup import unpacked_home

_QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Otherwise Java reports an unusable archive on standard output, where a job writes its JSON."""
_LONGEST_DUMP: Final = 300.0


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Place of the archive for one Java and one Spark.

    *folder* has the archive and a SPARK_HOME of links: Java also compares the paths of its jars,
    and a home in a temporary folder would change each time.
    """

    java: Java
    folder: Path

    @property
    def file(self) -> Path:
        """The archive of Spark's classes, based on the archive of Java's classes."""
        return self.folder / "spark.jsa"

    @property
    def base(self) -> Path:
        """The archive of Java's classes, for a Java without its own: the Java of a wheel."""
        return self.folder / "java.jsa"

    @property
    def home(self) -> Path:
        """The SPARK_HOME for starts with the archive."""
        return self.folder / "spark"

    @property
    def is_there(self) -> bool:
        """Whether the archive exists."""
        return self.file.is_file()

    def flags(self) -> list[str]:
        """Return the flags with which Java uses the archive."""
        layers = [str(one) for one in (self.base, self.file) if one.is_file()]
        named = f"-XX:SharedArchiveFile={os.pathsep.join(layers)}"
        return [*_QUIET, "-XX:+VerifySharedSpaces", named]

    def recording_flags(self) -> list[str]:
        """Return the flags with which Java writes the archive when it ends."""
        base = [f"-XX:SharedArchiveFile={self.base}"] if self.base.is_file() else []
        return [*_QUIET, *base, f"-XX:ArchiveClassesAtExit={self.written}"]

    @property
    def written(self) -> Path:
        """The file that Java writes first: another Java must not find a partial archive."""
        return self.folder / f"spark.jsa.{os.getpid()}"

    def begin(self) -> None:
        """Create the folder, the home and, if missing, the archive of Java's own classes.

        Raises PipelineUnavailable if that fails.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PipelineUnavailable(
                f"no class archive can be kept in {self.folder}: {error}; set XDG_CACHE_HOME to a "
                "folder that can be written"
            ) from error
        self._make_home()
        if _run(self.java, "-Xshare:on", "-version").returncode != 0:
            self._write_base()

    def end(self) -> None:
        """Rename the written archive to its final name, and remove archives of earlier builds.

        Raises PipelineUnavailable if Java wrote no archive.
        """
        if not self.written.is_file():
            raise PipelineUnavailable(
                f"Java {self.java.version} in {self.java.home} wrote no class archive; jobs start "
                "without. Another Java is chosen with --java-home"
            )
        with self.written.open("rb") as file:
            os.fsync(file.fileno())  # after a power failure, Java would crash on a partial file
        self.written.replace(self.file)
        for other in self.folder.parent.glob("*/*.jsa*"):
            if other.parent != self.folder:
                other.unlink(missing_ok=True)

    def _make_home(self) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            made = unpacked_home(Path(scratch))
            if made is None:
                raise PipelineUnavailable(
                    f"no class archive can be made: {self.folder} takes no symbolic links, or "
                    "pyspark has another layout than that of its wheel"
                )
            if not self.home.is_dir():
                made.rename(self.home)

    def _write_base(self) -> None:
        written = self.base.with_name(f"java.jsa.{os.getpid()}")
        ran = _run(self.java, "-Xshare:dump", f"-XX:SharedArchiveFile={written}")
        if ran.returncode != 0:
            raise PipelineUnavailable(
                f"Java {self.java.version} in {self.java.home} cannot share classes: "
                f"{ran.stderr.strip() or ran.stdout.strip()}"
            )
        written.replace(self.base)


def class_archive(java: Java, environ: Mapping[str, str] = os.environ) -> ClassArchive:
    """Return the place of the archive for *java* and the installed pyspark.

    Raises ConfigurationError for a folder whose name cannot be in an option of Java.
    """
    import pyspark

    spark = Path(str(pyspark.__file__)).absolute().parent
    folder = cache_folder(environ).absolute() / f"classes-{_digest(java.home, spark)}"
    if any(one.isspace() or one in "\"'\\:;" for one in str(folder)):
        raise ConfigurationError(
            f"the class archive is named in an option of Java, which can have no space, quote or "
            f"colon in it: {folder}; set XDG_CACHE_HOME to another folder"
        )
    return ClassArchive(java, folder / _digest(java.build, pyspark.__version__))


def kept_archive(java: Java, environ: Mapping[str, str] = os.environ) -> ClassArchive | None:
    """Return the archive for *java* and the installed pyspark; None if none was made."""
    try:
        found = class_archive(java, environ)
    except ConfigurationError:  # no archive is possible there, and none is required
        return None
    return found if found.is_there else None


def _digest(*parts: object) -> str:
    return sha256("\n".join(map(str, parts)).encode()).hexdigest()[:12]


def _run(java: Java, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command: Sequence[str] = [str(java.home / "bin" / "java"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_LONGEST_DUMP
    )
