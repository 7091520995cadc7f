"""A Spark session as the pipeline needs it: UTC, this Python, loopback only, and quiet."""

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
"""Set where a Java has started this process, and not the other way round."""
_LONGEST_END: Final = 60.0
"""Seconds until a Java has ended."""
_LONGEST_RECORDED_END: Final = 600.0
"""Seconds until a Java has ended that writes a class archive: some twenty on two cores."""

# Settings of a shell for another Spark or Java would steer ours.
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

    *master* is Spark's. The default is the master that ``spark-submit`` or *configuration* names,
    otherwise ``local[*,3]``: this machine, where a task that fails is tried three times
    (``local[*]`` never tries again). *remote* is the ``sc://`` address of a Spark Connect
    server instead. *local_dir* is where shuffles are written: a folder with room for the data.
    *is_short* has a Java of this machine compile quickly, and not well: a job on few rows then
    takes 0.6 of the work, a job on millions more of it.
    *partitions* is how many tasks read a store or a table, and how many parts a shuffle has; in a
    session that is there already its setting READ_BY says how many tasks read. *verbose* shows
    Spark's own log.
    """

    master: str | None = optional(
        None, "--master", "Spark's master URL. Without it, that of spark-submit, or local[*,3]."
    )
    remote: str | None = optional(
        None, "--remote", "A Spark Connect server instead, sc://host:port."
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
        """The address of the server, or the master: that which is set, otherwise this machine."""
        return self.remote or self.master or self.configuration.get(_MASTER, _THIS_MACHINE)

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in processes of this machine that we start."""
        return self.remote is None and self.runs_at.startswith("local")


def as_submitted(options: SessionOptions) -> SessionOptions:
    """Return *options* with the settings of ``spark-submit``, if it has started this process.

    A setting in *options* goes before the same setting of ``spark-submit``, and both go before the
    settings of this library: above all the master, which would otherwise run a cluster's job here.
    """
    if _GATEWAY not in os.environ:
        return options
    from pyspark import SparkConf, SparkContext

    prepare: Any = SparkContext._ensure_initialized  # it attaches to the Java that is there
    prepare()
    return replace(options, configuration={**dict(SparkConf().getAll()), **options.configuration})


Job = TypeVar("Job", bound=Callable[..., Any])
_ZONE: Final = "spark.sql.session.timeZone"
_TIMES: Final = {
    _ZONE: "UTC",
    # As other types, texts with an offset are read without the offset.
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # By the older policy, microseconds are written as if they were milliseconds.
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
}


def in_utc(job: Job) -> Job:
    """Have *job*, whose first argument is a session, run with UTC as the session's time zone.

    Spark formats timestamps and cuts days in the zone of the session: in another zone a header
    would tell another instant than the row that it belongs to. The two settings that change what a
    timestamp means are Spark's own meanwhile, too. A frame of the caller keeps the zone that it was
    made with, but not with Spark Connect, which reads its plan only when it runs.
    """

    @wraps(job)
    def run(spark: "SparkSession", *args: Any, **more: Any) -> Any:
        before = {name: str(spark.conf.get(name)) for name in _TIMES}
        # A host may refuse to set a value, even the value that is there.
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
"""Spark plans no query on a source that could push filters, unless this is set."""
READ_BY: Final = "spark.timeoutmgr.partitions"
"""How many tasks read a store or a table. It is ours: Spark keeps it, and knows nothing of it."""


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

    Where this process has one already, that is lent as it is, and not stopped. A Java of this
    machine starts with its class archive if one is kept; it writes *recorded* when it ends.

    Raises PipelineUnavailable where Spark, Java or the server is missing.
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
    """Return Spark's settings for *options*; *scratch* is a folder of this run's own.

    *flags* are options of a Java that is started here.
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
    """Have rows come from the workers through sockets in *folder*: less work than through ports.

    A process that can open a socket is let in, so the folder is this run's alone (ADR 52).
    """
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        return {}
    name = "spark.python.unix.domain.socket"
    return {f"{name}.enabled": "true", f"{name}.dir": str(folder)}


_LONGEST_FOLDER: Final = 60
"""Bytes. The path of a socket has at most 104 to 108, of which Spark's name for it is 42."""

_SHUFFLES: Final = {
    # Of fifty million messages each part fits the heap. Rows are written to all parts at once, by
    # a buffer for each, and many buffers outgrow the processor's caches.
    "spark.sql.shuffle.partitions": "32",
    # Spark puts small parts together up to this: a table of ids that outgrows the caches as well
    # is searched slowly.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
}

_JAVA_FLAGS: Final = "spark.driver.defaultJavaOptions"
"""Before the options of ``--conf spark.driver.extraJavaOptions``, which may say otherwise."""

_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""The first compiler alone, and the collector that starts no threads."""

_SETTINGS: Final = {
    "spark.app.name": "timeoutmgr-pipeline",
    _ZONE: "UTC",
    PUSHDOWN: "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # For each column that is named, where in the source that was: six calls into the JVM, and a
    # class looked for in every jar. A job names hundreds.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # By itself it is on where rows are computed and off where they are read and written, and each
    # has its own process that workers are forked from, with all that it imports.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # A speculative attempt would load the same rows at the same time: harmless, and wasted.
    "spark.speculation": "false",
    # Files of an archive are many and near: a job to list them takes longer than to list them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # Rows that are in their place already are grouped once, and not first in parts.
    "spark.sql.execution.combineAdjacentAggregation": "true",
    # Rows that are kept for two more readers take longer to pack than to read again.
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
        if not is_submitted:  # a Java that has started this process ends after it
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
    """Keep what SIGINT does: Spark's handler calls Java on a connection that waits for Java."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


def _end_of(session: "SparkSession") -> Callable[..., None]:
    """Return an exit that stops *session*; what ended the work counts before an error of that."""

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
    """Return the SPARK_HOME, and the flags of Java for the archive of its classes."""
    if recorded is not None:
        return recorded.home, recorded.recording_flags()
    archive = kept_archive(java)
    if archive is not None:
        return archive.home, archive.flags()
    return unpacked_home(scratch), []


def _end_java(longest: float) -> None:
    """End the JVM, in *longest* seconds at most: by itself it stays as long as this process."""
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
    """Start the JVM with an environment of ours: it and its Python workers inherit it.

    Without *java* it runs already, and a Python of its workers that is named stays.
    """
    before = dict(os.environ)
    if options.is_local:
        for name in _STRANGE:
            os.environ.pop(name, None)
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if home is not None:
        os.environ["SPARK_HOME"] = str(home)
    # By itself pyspark takes the first python3 on the PATH, which need not be ours.
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
