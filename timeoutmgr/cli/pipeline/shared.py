"""What the pipeline's commands share: where Spark runs, which store, and how a job is told."""

import csv
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import option
from timeoutmgr.cli.shared import DEFAULT_FILE, Shared
from timeoutmgr.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from timeoutmgr.pipeline.session import SessionOptions

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

WITHIN = "pipeline"

_WHERE = ("master", "remote", "java_home", "local_dir", "driver_memory")


def on_spark(function: Decorated) -> Decorated:
    """Add the options that say where Spark runs; the command gets them as *where*."""
    folder = click.Path(file_okay=False, path_type=Path)
    declared: tuple[tuple[str, dict[str, Any]], ...] = (
        (
            "--master",
            {"help": "Spark's master URL. Without it, that of spark-submit, or local[*,3]."},
        ),
        ("--remote", {"help": "A Spark Connect server instead, sc://host:port."}),
        ("--java-home", {"type": folder, "help": "The Java to run Spark with, 17 or later."}),
        ("--local-dir", {"type": folder, "help": "Where shuffles are written; has room for them."}),
        ("--driver-memory", {"help": "Heap of Spark's driver. Without it, 1g."}),
        (
            "--conf",
            {"multiple": True, "metavar": "NAME=VALUE", "help": "A setting of Spark; many times."},
        ),
    )
    for name, settings in reversed(declared):
        function = option(name, **settings)(function)
    return function


def of_store(function: Decorated) -> Decorated:
    """Add ``--store``."""
    return option(
        "--store",
        help="A settings file, or NAME with the URL in TIMEOUTMGR_STORE_NAME. Without it, the "
        "endpoint's own.",
    )(function)


def of_stores(function: Decorated) -> Decorated:
    """Add ``--store``, which may be given many times."""
    return option(
        "--store",
        multiple=True,
        help="A settings file, or NAME with the URL in TIMEOUTMGR_STORE_NAME; many times. Without "
        "it, the endpoint's own.",
    )(function)


def store_names(shared: Shared, given: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all stores that were given, or of the endpoint's own."""
    return tuple(store_name(shared, one) for one in given) or (store_name(shared, None),)


def write_page(path: Path, page: str) -> None:
    """Write an HTML page to *path*; raise ConfigurationError where that cannot be."""
    try:
        path.write_text(page, "utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write the page {path}: {error}") from error


def write_table(path: Path, lines: Iterable[Sequence[object]]) -> None:
    """Write *lines* to *path* as CSV; raise ConfigurationError where that cannot be."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(lines)
    except OSError as error:
        raise ConfigurationError(f"cannot write the table {path}: {error}") from error


def store_name(shared: Shared, given: str | None) -> str:
    """Return the name under which Spark's workers can open the store."""
    if given is not None:
        return str(Path(given).resolve()) if given.endswith(".toml") else given
    if shared.app is not None:
        raise ConfigurationError(
            "the store of an --app has no name that Spark's workers could open; give --store"
        )
    path = shared.config or Path(DEFAULT_FILE)
    if shared.config is None and not path.is_file():
        return ""  # the environment's own settings
    if path.suffix != ".toml":
        raise ConfigurationError(f"a settings file that names a store ends in .toml, got {path}")
    return str(path.resolve())


@contextmanager
def spark(
    shared: Shared, options: dict[str, Any], stores: Sequence[str] = ()
) -> Iterator["SparkSession"]:
    """Lend the session that *options* of :func:`on_spark` describe, for a job on *stores*.

    Raises what is wrong with a store before Spark is started, which takes some seconds.
    """
    from timeoutmgr.pipeline.session import spark_session

    chosen = session_options(shared, options)
    for name in stores:
        _require_tables(name)
    progress(shared)("starting Spark")
    with _ended_by_signal(), spark_session(chosen) as session:
        yield session


def _require_tables(name: str) -> None:
    from timeoutmgr.pipeline.stores import open_store

    store = open_store(name)
    try:
        store.require_tables()
    finally:
        store.persistence.close()


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _frame: FrameType | None) -> None:
    """End as an interrupt does: by itself SIGTERM would leave folders and a JVM behind."""
    sys.exit(128 + number)


def session_options(shared: Shared, options: dict[str, Any]) -> "SessionOptions":
    """Return where and how Spark runs, as *options* of :func:`on_spark` say."""
    from timeoutmgr.pipeline.session import SessionOptions

    settings = dict(_setting(text) for text in options["conf"])
    given = {name: options[name] for name in _WHERE if options[name] is not None}
    return SessionOptions(verbose=shared.verbose, configuration=settings, **given)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigurationError(f"--conf is NAME=VALUE, got {text!r}")
    return name, value


def progress(shared: Shared) -> Callable[[str], None]:
    """Return what tells people how far a job is."""
    return (lambda _text: None) if shared.json else (lambda text: output.print_error(f"… {text}"))
