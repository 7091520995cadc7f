"""Spark's error conditions, from errors of a local session or of Spark Connect."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Condition:
    """An error of Spark or one of its causes.

    *name* and *parameters* are as in Spark's list of error conditions; an error of another library
    has only its *text*.
    """

    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


def conditions_of(error: Exception) -> list[Condition]:
    """Return the condition of *error*, and the conditions of its causes if Spark reports them.

    A session of Spark Connect reports no causes.
    """
    from pyspark.errors import PySparkException

    if isinstance(error, PySparkException):
        name, parameters = error.getCondition(), error.getMessageParameters()
        return [Condition(name or "", parameters or {}, error.getMessage())]
    # pyspark has classes for some of Spark's errors; other errors come as py4j's own, which holds
    # the Java object.
    return [*_of_java(vars(error).get("java_exception"))]


_TRACEBACKS: Final = {"PYTHON_EXCEPTION": "traceback", "PYTHON_DATA_SOURCE_ERROR": "msg"}


def raised_by_worker(error: Exception) -> tuple[str, str]:
    """Return the full class name of the error that a Python worker raised, and its message.

    Both are at the end of a traceback. Without a traceback the name is empty, and the message is
    that of *error*.
    """
    shown = str(error)
    for one in conditions_of(error):
        shown = one.parameters.get(_TRACEBACKS.get(one.name, ""), shown)
    lines = shown.strip().split("\n")
    frames = [at for at, line in enumerate(lines) if line.startswith("  ")]
    # In the single text of Spark Connect, an SQLSTATE follows the message, and frames of Java
    # follow an empty line.
    end = re.split(r"\n SQLSTATE: |\n\n", "\n".join(lines[frames[-1] + 1 if frames else 0 :]))[0]
    name, colon, sentence = end.partition(": ")
    is_name = bool(colon) and all(map(str.isidentifier, name.split(".")))
    return (name, sentence) if is_name and frames else ("", end)


@contextmanager
def lasting_errors() -> Iterator[None]:
    """Raise errors of Spark, which need the JVM for their text, as RuntimeErrors with the text."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def _of_java(thrown: Any) -> Iterator[Condition]:
    while thrown is not None:
        yield _condition_of_java(thrown)
        thrown = thrown.getCause()


def _condition_of_java(thrown: Any) -> Condition:
    from py4j.protocol import Py4JError

    text = str(thrown.getMessage())
    try:
        return Condition(thrown.getCondition() or "", dict(thrown.getMessageParameters()), text)
    except Py4JError:  # without these methods, it is not an error of Spark
        return Condition(text=text)
