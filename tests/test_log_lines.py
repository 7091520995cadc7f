"""A log line shows a bounded part of a stranger's text: read from the source of every module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.house import trees

ROOT = Path(__file__).parent.parent
LEVELS = ("debug", "info", "warning", "error", "critical", "exception")
PLACE = re.compile(r"%(?:\.(?P<most>\d+))?(?P<kind>[a-z])")
ERRORS = re.compile(r"(^|[._])(error|refusal|failure|away|reason|exception|broken)$")
TEXTS = re.compile(r"(^|\.)(message_id|message\.id|timeout\.id|destination)$")


@cache
def log_calls() -> list[tuple[str, str, list[str]]]:
    """Return where each log line is written, its format, and its arguments as source."""
    found = []
    folders = ("timeoutmgr", "persistence", "satellites")
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        where = str(path.relative_to(ROOT))
        if where.startswith(("timeoutmgr/testing/", "timeoutmgr/pipeline/")):
            continue  # neither reads from a queue
        for node in ast.walk(trees()[path]):
            match node:
                case (
                    ast.Call(
                        func=ast.Attribute(value=ast.Name(id="logger"), attr=level),
                        args=[ast.Constant(value=str(text)), *given],
                    )
                    | ast.Call(
                        func=ast.Attribute(value=ast.Name(id="logger"), attr="log" as level),
                        args=[_, ast.Constant(value=str(text)), *given],
                    )
                ) if level in {*LEVELS, "log"}:
                    arguments = [ast.unparse(each) for each in _flat(given)]
                    found.append((f"{where}:{node.lineno}", text, arguments))
    return found


def _flat(given: list[ast.expr]) -> Iterator[ast.expr]:
    for each in given:
        match each:
            case ast.Starred(value=ast.Tuple(elts=elements)):
                yield from elements
            case _:
                yield each


FIELDS = {"event", "endpoint", "message_id", "timeout_id", "destination", "attempt"}
"""Names of the fields that log lines give by ``extra=``; ``event`` is always there."""


def fields() -> Iterator[tuple[str, set[str]]]:
    """Yield the place and the names of the fields of each log call that lists them."""
    for folder in ("timeoutmgr", "persistence", "satellites"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(trees()[path]):
                match node:
                    case ast.keyword(arg="extra", value=ast.Dict(keys=keys)):
                        names = {ast.literal_eval(key) for key in keys if key is not None}
                        yield f"{path.relative_to(ROOT)}:{node.value.lineno}", names


def places() -> Iterator[tuple[str, re.Match[str], str]]:
    """Yield each place of a format, with the argument that is put there."""
    for where, text, given in log_calls():
        found = list(PLACE.finditer(text))
        assert len(found) == len(given), f"{where}: {text}"
        yield from ((where, place, argument) for place, argument in zip(found, given, strict=True))


def test_log_lines_were_found() -> None:
    assert len(log_calls()) > 60


def test_the_fields_of_a_log_line_have_known_names() -> None:
    unknown = [f"{at}: {names - FIELDS}" for at, names in fields() if names - FIELDS]
    unnamed = [at for at, names in fields() if "event" not in names]

    assert unknown == []
    assert unnamed == []


def test_a_quoted_value_in_a_log_line_has_at_most_80_characters() -> None:
    unbounded = [
        f"{where}: {argument}"
        for where, place, argument in places()
        if place["kind"] == "r" and int(place["most"] or 1000) > 80
    ]

    assert unbounded == []


@pytest.mark.parametrize("pattern", [ERRORS, TEXTS], ids=["errors", "texts"])
def test_a_strangers_text_in_a_log_line_is_bounded(pattern: re.Pattern[str]) -> None:
    raw = [
        f"{where}: {argument}"
        for where, place, argument in places()
        if place["kind"] == "s" and pattern.search(argument)
    ]

    assert raw == []
