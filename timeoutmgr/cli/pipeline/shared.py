"""Helpers that the pipeline's commands share: options of jobs, Spark, stores, and progress."""

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import MISSING, Field, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType, NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.options import Duration, Instant, Pair, added, by_name, option
from timeoutmgr.cli.shared import DEFAULT_FILE, Shared
from timeoutmgr.errors import ConfigurationError
from timeoutmgr.pipeline.options import check_value, declared_fields
from timeoutmgr.pipeline.spark.session import SessionOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pyspark.sql import SparkSession

    from timeoutmgr.pipeline.options import Declaration

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Options = TypeVar("Options", bound="DataclassInstance")

FOLDER = click.Path(file_okay=False, path_type=Path)

WITHIN = "pipeline"

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_TYPES: dict[Any, Any] = {Path: FOLDER, timedelta: Duration(), datetime: Instant()}
"""Types on the command line, by the types of the fields; all other types stay the same."""


def of_job(options: "type[DataclassInstance]") -> Callable[[Decorated], Decorated]:
    """Add the options that the fields of *options* declare, in order."""
    kinds = get_type_hints(options)
    return added(
        *(
            _declared(one, declared, kinds[one.name])
            for one, declared in declared_fields(options)
            if declared.flag
        )
    )


def job_options(options: type[Options], given: Mapping[str, Any], **more: Any) -> Options:
    """Return *options* with the values *given* on the command line, overridden by *more*."""
    values = {
        one.name: _read(given[one.name], one, declared.flag)
        for one, declared in declared_fields(options)
        if declared.flag and given[one.name] is not None
    }
    return options(**(values | more))


def store_job(
    shared: Shared, options: type[Options], given: Mapping[str, Any], store: str | None
) -> Options:
    """Return ``job_options`` for a job on the given *store*, or on the endpoint's own store."""
    return job_options(options, given, store=store_name(shared, store))


def _declared(
    one: "Field[Any]", declared: "Declaration", kind: Any
) -> Callable[[Decorated], Decorated]:
    flag: dict[str, Any] = {"help": declared.help, "metavar": declared.metavar}
    kinds = [each for each in get_args(kind) or (kind,) if each is not NoneType]
    if kind is bool:
        flag["is_flag"] = True
    elif get_origin(kind) is Mapping:
        flag |= {"multiple": True, "type": Pair()}
    elif get_origin(kind) is not tuple:
        flag["type"] = _TYPES.get(kinds[0], kinds[0])
    if one.default is MISSING and one.default_factory is MISSING:
        flag["required"] = declared.is_required
    elif one.default not in (MISSING, None) and kind is not bool and declared.shows_default:
        flag |= {"default": _spelt(one.default), "show_default": True}

    def checked(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        # Check this during parsing, before any job of a run, and Spark, have begun.
        if value is not None:
            check_value(one.name, declared, _read(value, one, declared.flag))
        return value

    return option(declared.flag, one.name, callback=checked, **flag)


def _spelt(default: Any) -> Any:
    """Return *default* as on the command line."""
    if isinstance(default, timedelta):
        seconds = int(default.total_seconds())
        return next(f"{seconds // size}{unit}" for size, unit in _UNITS if seconds % size == 0)
    return ",".join(default) if isinstance(default, tuple) else default


def _read(value: Any, one: "Field[Any]", flag: str) -> Any:
    """Return *value* converted for the field; a flag can turn a default off."""
    if isinstance(one.default, bool):
        return value is not one.default
    if isinstance(one.default, tuple):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    if isinstance(value, tuple):
        return by_name(flag, value)
    return value


on_spark: Final = of_job(SessionOptions)
"""Add the options for Spark's location."""
of_store: Final = option(
    "--store",
    help="A settings file, or NAME with the URL in TIMEOUTMGR_STORE_NAME. Without it, the "
    "endpoint's own.",
)
of_stores: Final = option(
    "--store",
    multiple=True,
    help="A settings file, or NAME with the URL in TIMEOUTMGR_STORE_NAME; may be given many "
    "times. Without it, the endpoint's own.",
)


def store_names(shared: Shared, given: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all given stores, or of the endpoint's own store."""
    return tuple(store_name(shared, one) for one in given) or (store_name(shared, None),)


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
    shared: Shared,
    options: dict[str, Any],
    stores: Sequence[str] = (),
    inputs: Sequence[str | None] = (),
) -> Iterator["SparkSession"]:
    """Yield the session for the *options* of :func:`on_spark`, for a job on *stores*.

    The job also reads *inputs*: files, folders or history tables; None is ignored.

    Errors of a store are raised before Spark is started, which takes some seconds.
    """
    from timeoutmgr.pipeline.registration import spark_session
    from timeoutmgr.pipeline.spark.conditions import lasting_errors

    chosen = session_options(shared, options)
    is_short = bool(stores) and _is_short(stores, [one for one in inputs if one is not None])
    progress(shared)("starting Spark")
    chosen = replace(chosen, is_short=is_short)
    with _ended_by_signal(), spark_session(chosen) as session, lasting_errors():
        yield session


def _is_short(stores: Sequence[str], inputs: Sequence[str]) -> bool:
    from timeoutmgr.pipeline.stores import open_store
    from timeoutmgr.pipeline.volume import is_little

    with ExitStack() as stack:
        opened = []
        for name in stores:
            opened.append(store := open_store(name))
            stack.enter_context(closing(store.persistence))
            store.require_tables()
        return is_little(opened, inputs)


class _EndingSignal:
    """Handler of SIGINT and SIGTERM: by default, SIGTERM would leave folders and a JVM behind.

    It raises an interrupt, after which py4j closes the connection of the current call. After any
    other error, the next call would wait for the answer to that call, and take it as its own.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    def received(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
        raise KeyboardInterrupt

    def is_not_received(self, _record: logging.LogRecord) -> bool:
        """Return whether py4j may log: it would log the interrupt and errors that follow."""
        return self.number is None


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Exit with the code of a signal, even if the closed connection raises an error."""
    ending = _EndingSignal()
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as after a shell's "&"
    ends = [signal.SIGTERM, *([] if is_ignored else [signal.SIGINT])]
    before = {one: signal.signal(one, ending.received) for one in ends}
    loggers = [logging.getLogger(name) for name in ("", "py4j.clientserver")]  # "" is the root
    for logger in loggers:
        logger.addFilter(ending.is_not_received)
    try:
        yield
    except BaseException:
        if ending.number is not None:
            sys.exit(128 + ending.number)
        raise
    finally:
        for logger in loggers:
            logger.removeFilter(ending.is_not_received)
        for number, handler in before.items():
            signal.signal(number, handler)


def session_options(shared: Shared, options: dict[str, Any]) -> SessionOptions:
    """Return the options of the session, from the *options* of :func:`on_spark`."""
    return job_options(SessionOptions, options, verbose=shared.verbose)


def progress(shared: Shared) -> Callable[[str], None]:
    """Return a function that shows the progress of a job."""
    return (lambda _text: None) if shared.json else (lambda text: output.print_error(f"… {text}"))
