"""A Spark session for the pipeline: with UTC, this Python, only loopback addresses, and quiet."""

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.errors import PipelineUnavailable, require_extra
from timeoutmgr.pipeline.options import check_declared, option, optional, positive
from timeoutmgr.pipeline.spark.class_archive import ClassArchive, kept_archive
from timeoutmgr.pipeline.spark.java import Java, find_java
from timeoutmgr.pipeline.spark.startup import held_back, require_answer, shown, unpacked_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_MASTER: Final = "spark.master"
_THIS_MACHINE: Final = "local[*,3]"
_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""The variable that is set if a Java has started this process."""
_LONGEST_END: Final = 60.0
"""Maximum seconds for the end of a Java."""
_LONGEST_RECORDED_END: Final = 600.0
"""Maximum seconds for the end of a Java that writes a class archive: about 20 on two cores."""

# Settings in the shell for another Spark or Java would affect this Spark.
_STRANGE: Final = (
    *("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "SPARK_HOME"),
    *("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS"),
)
_LOG4J: Final = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark %p %c{1}: %m%n
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Where and how Spark runs.

    *master* is Spark's master URL. The default is the master that ``spark-submit`` or
    *configuration* names, otherwise ``local[*,3]``: this machine, with three attempts for each task
    (``local[*]`` never retries). *remote* is the ``sc://`` address of a Spark Connect server to use
    instead. *local_dir* is a folder for shuffles, with enough space for the data. *is_short* makes
    a Java on this machine compile quickly but not well: a job on few rows then takes 0.6 of the
    work, a job on millions of rows takes more. *partitions* is the number of tasks that read a
    store or a table, and of parts of a shuffle; an existing session reads with the number of tasks
    in its setting READ_BY. *verbose* shows Spark's own log.
    """

    master: str | None = optional(
        None, "--master", "Spark's master URL. Without it, spark-submit's, or local[*,3]."
    )
    remote: str | None = optional(
        None, "--remote", "Spark Connect server to use instead, sc://host:port."
    )
    java_home: Path | None = optional(
        None, "--java-home", "The Java to run Spark with, 17 or later."
    )
    local_dir: Path | None = optional(
        None, "--local-dir", "Folder for shuffles, on a disk with enough room."
    )
    driver_memory: str = optional(
        "1g", "--driver-memory", "Heap of Spark's driver. Without it, 1g.", shows_default=False
    )
    partitions: int | None = optional(
        None,
        "--partitions",
        "Tasks that read a store or a table, and parts of a shuffle.",
        positive,
    )
    verbose: bool = False
    is_short: bool = False
    configuration: Mapping[str, str] = field(
        default_factory=dict,
        metadata=option("--conf", "A setting of Spark; may be repeated.", metavar="NAME=VALUE"),
    )

    def __post_init__(self) -> None:
        """Check every value."""
        if self.remote is not None and not self.remote.startswith("sc://"):
            raise ConfigurationError(
                f"remote is the address of a Spark Connect server, sc://host:port; got "
                f"{self.remote!r}"
            )
        check_declared(self)
        if self.local_dir is not None and not self.local_dir.is_dir():
            raise ConfigurationError(f"local_dir is a folder that exists, got {self.local_dir}")

    @property
    def runs_at(self) -> str:
        """The address of the server, or the master; by default this machine."""
        return self.remote or self.master or self.configuration.get(_MASTER, _THIS_MACHINE)

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in processes that this program starts on this machine."""
        return self.remote is None and self.runs_at.startswith("local")


def as_submitted(options: SessionOptions) -> SessionOptions:
    """Return *options* with the settings of ``spark-submit``, if it has started this process.

    Settings in *options* override those of ``spark-submit``, and both override this library's
    settings. Above all this holds for the master: otherwise a cluster's job would run here.
    """
    if _GATEWAY not in os.environ:
        return options
    from pyspark import SparkConf, SparkContext

    prepare: Any = SparkContext._ensure_initialized  # attaches to the running Java
    prepare()
    return replace(options, configuration={**dict(SparkConf().getAll()), **options.configuration})


Job = TypeVar("Job", bound=Callable[..., Any])
_ZONE: Final = "spark.sql.session.timeZone"
_TIMES: Final = {
    _ZONE: "UTC",
    # With other types, the offset in a text is ignored.
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # The older policy writes microseconds as if they were milliseconds.
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
}


def in_utc(job: Job) -> Job:
    """Make *job*, whose first argument is a session, run with UTC as the session's time zone.

    Spark formats timestamps and cuts days in the session's zone: in another zone, a header would
    have another instant than its row. Meanwhile the two settings that change the meaning of a
    timestamp also have Spark's defaults. A caller's frame keeps the zone in which it was made,
    except with Spark Connect, which interprets a plan only when it runs.
    """

    @wraps(job)
    def run(spark: "SparkSession", *args: Any, **more: Any) -> Any:
        before = {name: str(spark.conf.get(name)) for name in _TIMES}
        # A host may refuse to set a value, even to the present value.
        others = {name: value for name, value in _TIMES.items() if before[name] != value}
        _configure(spark, others)
        try:
            return job(spark, *args, **more)
        finally:
            _configure(spark, {name: before[name] for name in others})

    return run  # type: ignore[return-value]  # the signature is that of the job


def _configure(spark: "SparkSession", settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        spark.conf.set(name, value)


PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
"""Without this setting, Spark plans no query on a source that can push filters down."""
READ_BY: Final = "spark.timeoutmgr.partitions"
"""Number of tasks that read a store or a table: our own setting, which Spark only keeps."""


def is_inside(spark: "SparkSession") -> bool:
    """Whether *spark* runs in this process; a session of Spark Connect hides its internals."""
    from pyspark.sql import SparkSession

    return isinstance(spark, SparkSession)


def require_spark() -> None:
    """Raise PipelineUnavailable if the extra is not installed."""
    require_extra("spark", "the pipeline", "pyspark", "pyarrow")


@contextmanager
def bare_session(
    options: SessionOptions, *, recorded: ClassArchive | None = None
) -> Iterator["SparkSession"]:
    """Yield a session without registered data sources; stop it at the end.

    If this process already has a session, yield that session as it is, and do not stop it. A Java
    on this machine uses its class archive if one exists; at its end it writes *recorded*, if given.

    Raises PipelineUnavailable if Spark, Java or the server is missing.
    """
    require_spark()
    with ExitStack() as stack:
        if options.remote:
            yield _connected(options, stack)
        else:
            yield _started(options, stack, recorded)


def settings_of(
    options: SessionOptions, scratch: Path, flags: Sequence[str] = ()
) -> dict[str, str]:
    """Return Spark's settings for *options*; *scratch* is a folder of this run.

    *flags* are options for a Java that this program starts.
    """
    settings = {
        **_SETTINGS,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.memory": options.driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={scratch}/log4j2.properties",
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
    }
    if options.is_local:
        settings |= {"spark.local.dir": str(options.local_dir or scratch)}
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings |= _SHUFFLES | _sockets(scratch)
        flags = [*flags, *_QUICK] if options.is_short else flags
        settings |= {_JAVA_FLAGS: " ".join(flags)} if flags else {}
    return {**settings, **_partitions(options), **options.configuration}


def _partitions(options: SessionOptions) -> dict[str, str]:
    if options.partitions is None:
        return {}
    return dict.fromkeys((READ_BY, "spark.sql.shuffle.partitions"), str(options.partitions))


def _sockets(folder: Path) -> dict[str, str]:
    """Return settings for sockets in *folder* between workers and Java: less work than ports.

    Any process that can open such a socket is accepted, so the folder is private (ADR 52).
    """
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        return {}
    name = "spark.python.unix.domain.socket"
    return {f"{name}.enabled": "true", f"{name}.dir": str(folder)}


_LONGEST_FOLDER: Final = 60
"""Bytes. A socket's path has at most 104 to 108 bytes, of which Spark's file name takes 42."""

_SHUFFLES: Final = {
    # With fifty million messages, each part still fits the heap. More parts would be slower: each
    # has a write buffer, and many buffers outgrow the processor's caches.
    "spark.sql.shuffle.partitions": "32",
    # Spark merges small parts up to this size: a larger hash table of ids would also outgrow the
    # caches, and be slow.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
}

_JAVA_FLAGS: Final = "spark.driver.defaultJavaOptions"
"""Applied before the options in ``--conf spark.driver.extraJavaOptions``, which can override."""

_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Only the first compiler, and the garbage collector without threads."""

_SETTINGS: Final = {
    "spark.app.name": "timeoutmgr-pipeline",
    _ZONE: "UTC",
    PUSHDOWN: "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Otherwise pyspark records the source line of each named column: six calls into the JVM, and a
    # search for a class in every jar. A job names hundreds of columns.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # By default this is on for computing rows and off for reading and writing them; then each kind
    # has its own process from which workers are forked, with its own imports.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # A speculative attempt would load the same rows concurrently: harmless, but wasteful.
    "spark.speculation": "false",
    # The files of an archive are many and near: listing them is faster than a job for it.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Group rows that are already partitioned once, not first in parts.
    "spark.sql.execution.combineAdjacentAggregation": "true",
    # Compressing rows that are cached for two more readers takes longer than reading them again.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def _started(
    options: SessionOptions, stack: ExitStack, recorded: ClassArchive | None
) -> "SparkSession":
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession()
    if there is not None:
        return there
    is_submitted = _GATEWAY in os.environ
    options = as_submitted(options)
    require_answer(options.runs_at)
    java = None if is_submitted else find_java(options.java_home)
    scratch = Path(tempfile.mkdtemp(prefix="timeoutmgr-spark-"))
    stack.callback(shutil.rmtree, scratch, ignore_errors=True)
    (scratch / "log4j2.properties").write_text(_LOG4J)
    home, flags = None, list[str]()
    if options.is_local and java is not None:
        home, flags = _home_and_flags(java, scratch, recorded)
    builder = SparkSession.builder
    for name, value in settings_of(options, scratch, flags).items():
        builder = builder.config(name, value)
    builder = builder.master(options.runs_at)
    with _environment(options, java, home), nullcontext() if options.verbose else held_back():
        if not is_submitted:  # a Java that started this process ends after this process
            stack.callback(_end_java, _LONGEST_RECORDED_END if recorded else _LONGEST_END)
        try:
            with _same_interrupt():
                made = builder.getOrCreate()
            stack.push(_end_of(made))
            return made
        except Exception as error:  # of py4j, pyspark or the JVM: all mean the same here
            found = f", with Java {java.version} in {java.home}" if java else ""
            raise PipelineUnavailable(
                f"Spark did not start at {options.runs_at!r}{found}: {_first_line(error)}"
            ) from error


@contextmanager
def _same_interrupt() -> Iterator[None]:
    """Keep the handler of SIGINT: Spark's handler would use a connection that waits for Java."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


def _end_of(session: "SparkSession") -> Callable[..., None]:
    """Return an exit that stops *session*; an error in the stop does not hide an earlier error."""

    def stop(_kind: object, ended_by: BaseException | None, _traceback: object) -> None:
        try:
            session.stop()
        except Exception as error:
            if ended_by is None:
                raise
            fields = {"event": "spark_not_stopped"}
            logger.info("pipeline leaves Spark session: %s", _first_line(error), extra=fields)

    return stop


def _home_and_flags(
    java: Java, scratch: Path, recorded: ClassArchive | None
) -> tuple[Path | None, list[str]]:
    """Return the SPARK_HOME, and Java's flags for the class archive."""
    if recorded is not None:
        return recorded.home, recorded.recording_flags()
    archive = kept_archive(java)
    if archive is not None:
        return archive.home, archive.flags()
    return unpacked_home(scratch), []


def _end_java(longest: float) -> None:
    """End the JVM, within *longest* seconds: by default it lives as long as this process."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=longest)


def _connected(options: SessionOptions, stack: ExitStack) -> "SparkSession":
    from pyspark.sql import SparkSession

    remote = str(options.remote)
    require_answer(remote)
    try:
        made = SparkSession.builder.remote(remote).getOrCreate()
        stack.push(_end_of(made))
        _configure(made, {_ZONE: "UTC", **_partitions(options)})
    except Exception as error:  # grpc's, or pyspark's own for packages that it lacks
        raise PipelineUnavailable(
            f"no Spark Connect server answers at {shown(remote)}: {_first_line(error)}"
        ) from error
    return made


@contextmanager
def _environment(options: SessionOptions, java: Java | None, home: Path | None) -> Iterator[None]:
    """Start the JVM with our environment, which the JVM and its Python workers inherit.

    Without *java* the JVM runs already, and a named Python for its workers is kept.
    """
    before = dict(os.environ)
    if options.is_local:
        for name in _STRANGE:
            os.environ.pop(name, None)
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if home is not None:
        os.environ["SPARK_HOME"] = str(home)
    # By default pyspark uses the first python3 on the PATH, which need not be this Python.
    if java is not None:
        os.environ["JAVA_HOME"] = str(java.home)
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
