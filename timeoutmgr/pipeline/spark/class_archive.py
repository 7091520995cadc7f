"""The class archive: a file with Spark's classes in Java's in-memory format.

Half of a start of Spark is spent on ten thousand classes, which Java reads, checks and links anew
each time. A Java that shares class data (JEP 350) maps a file instead. It uses the file only with
the very build and the very jars that it was made with, and starts without it otherwise.
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
"""Java tells on standard output, where a job writes its JSON, that it cannot use an archive."""
_LONGEST_DUMP: Final = 300.0


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Place of the archive for one Java and one Spark.

    *folder* has it, with a SPARK_HOME of links: Java compares the paths of its jars too, and a
    home in a temporary folder would be another one each time.
    """

    java: Java
    folder: Path

    @property
    def file(self) -> Path:
        """The classes of Spark, on top of those of Java."""
        return self.folder / "spark.jsa"

    @property
    def base(self) -> Path:
        """The classes of Java, where the Java has no archive of them itself: that of a wheel."""
        return self.folder / "java.jsa"

    @property
    def home(self) -> Path:
        """The SPARK_HOME to start with."""
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
        """The file that is written; a Java that starts meanwhile must not find half of it."""
        return self.folder / f"spark.jsa.{os.getpid()}"

    def begin(self) -> None:
        """Make the folder, the home, and the archive of Java's own classes where there is none.

        Raises PipelineUnavailable where that cannot be.
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
        """Give the written archive its name, and remove archives of earlier builds.

        Raises PipelineUnavailable where Java has written none.
        """
        if not self.written.is_file():
            raise PipelineUnavailable(
                f"Java {self.java.version} in {self.java.home} wrote no class archive; jobs start "
                "without. Another Java is chosen with --java-home"
            )
        with self.written.open("rb") as file:
            os.fsync(file.fileno())  # Java would end at half of a file, after a loss of power
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

    Raises ConfigurationError for a folder whose name Java's options cannot have.
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
    except ConfigurationError:  # there can be no archive, and none is asked for
        return None
    return found if found.is_there else None


def _digest(*parts: object) -> str:
    return sha256("\n".join(map(str, parts)).encode()).hexdigest()[:12]


def _run(java: Java, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command: Sequence[str] = [str(java.home / "bin" / "java"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_LONGEST_DUMP
    )
