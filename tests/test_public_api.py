"""The public names change only with ``approvals/public_api.txt`` in the same change."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

APPROVED = Path(__file__).parent / "approvals" / "public_api.txt"
MODULES = (
    "timeoutmgr",
    "timeoutmgr.contrib.flask",
    "timeoutmgr.deadletter",
    "timeoutmgr.native",
    "timeoutmgr.persistence",
    "timeoutmgr.pipeline",
    "timeoutmgr.satellites",
)


def test_the_public_names_match_the_approved_names() -> None:
    now = "\n".join(line for name in MODULES for line in _module(importlib.import_module(name)))
    # What a class was given while a test froze time, it keeps.
    now = now.replace("freezegun.api.FakeDatetime", "datetime.datetime")
    now = now.replace("FakeDatetime", "datetime")

    if os.environ.get("TIMEOUTMGR_APPROVE"):
        APPROVED.write_text(f"{now}\n")

    assert now.splitlines() == APPROVED.read_text().splitlines(), "if this is meant: make approve"


@pytest.mark.parametrize("name", MODULES)
def test_every_exported_name_exists(name: str) -> None:
    face = importlib.import_module(name)
    exported = list(face.__all__)

    assert len(exported) == len(set(exported))
    assert [each for each in exported if not hasattr(face, each)] == []


def _module(module: ModuleType) -> Iterator[str]:
    yield f"{module.__name__}:"
    for name in sorted(getattr(module, "__all__", ())):
        yield from (f"    {line}" for line in _value(name, getattr(module, name)))


def _value(name: str, value: object) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _class(name, value)
    elif inspect.isroutine(value):
        yield f"def {name}{_signature(value)}"
    elif inspect.ismodule(value):
        yield f"module {value.__name__}"
    else:
        yield f"{name}: {type(value).__name__}"


def _class(name: str, cls: type) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    yield f"class {name}({bases})" if bases else f"class {name}"
    if issubclass(cls, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in cls)
        return
    if _is_ours(vars(cls).get("__init__")) or dataclasses.is_dataclass(cls):
        yield f"    __init__{_signature(vars(cls).get('__init__', cls.__init__))}"
    for member, value in sorted(vars(cls).items()):
        if member.startswith("_"):
            continue
        if isinstance(value, property):
            yield f"    property {member}"
        elif isinstance(value, classmethod | staticmethod):
            yield f"    {type(value).__name__} {member}{_signature(value.__func__)}"
        elif inspect.isfunction(value):
            yield f"    def {member}{_signature(value)}"


def _is_ours(function: object) -> bool:
    return inspect.isfunction(function) and function.__module__.startswith("timeoutmgr")


def _signature(function: object) -> str:
    """Return the signature with annotations as they are written, in any Python version."""
    assert callable(function)
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(
            annotation=_Plain.of(parameter.annotation), default=_Plain.of(parameter.default)
        )
        for parameter in signature.parameters.values()
    ]
    returned = _Plain.of(signature.return_annotation)
    return str(signature.replace(parameters=parameters, return_annotation=returned))


class _Plain:
    """A text that prints without quotes, unlike an annotation that is a string."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    @classmethod
    def of(cls, value: object) -> object:
        if value is inspect.Parameter.empty:
            return value
        if isinstance(value, str):
            return cls(value) if value else cls("''")
        if typing.get_origin(value) is typing.Unpack:  # each Python shows it its own way
            return cls(f"Unpack[{typing.get_args(value)[0].__name__}]")
        text = repr(value) if not inspect.isclass(value) else value.__name__
        text = text.replace("pathlib._local.", "pathlib.")  # where Python 3.13 has its classes
        return cls("..." if " object at 0x" in text or text.startswith("<") else text)
