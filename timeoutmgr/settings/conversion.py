"""Convert a value of a settings file or an environment variable to the type of its setting."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from timeoutmgr.errors import ConfigurationError
from timeoutmgr.message.instants import EXPECTED_DURATION, parse_duration, seconds
from timeoutmgr.message.redaction import redact

_YES: Final = frozenset({"true", "yes", "on", "1"})
_NO: Final = frozenset({"false", "no", "off", "0"})
_SCALARS: Final = (str, bool, int, float, timedelta, Path)
_LISTS: Final = (tuple, list, Sequence)
_MAPPINGS: Final = (dict, Mapping)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value with its *key* and its *source*.

    *is_text* marks a value to parse from text, as from the environment. *shown* is the text that
    an error may show: the value before secrets were filled in.
    """

    key: str
    value: Any
    source: str
    is_text: bool = False
    shown: str | None = None

    def wrong(self, expected: str, why: str = "") -> ConfigurationError:
        """Return the error with the expected type and the value."""
        if isinstance(self.value, Mapping):
            shown = "a table"
        else:
            shown = redact(self.shown if self.shown is not None else repr(self.value))
        reason = f" ({why})" if why and self.shown is None else ""
        return ConfigurationError(
            f"{self.key} in {self.source}: expected {expected}, got {shown:.200}{reason}"
        )


class _Mismatch(Exception):
    """The value is not of the type; the text gives the reason if it is not obvious."""


def convert(given: Given, hint: Any) -> Any:
    """Return the value as *hint*, a type or annotation; raise ConfigurationError if it cannot."""
    try:
        return _convert(given.value, hint, given.is_text)
    except (_Mismatch, OverflowError, RecursionError) as mismatch:
        raise given.wrong(expected(hint), str(mismatch)) from None


def can_convert(hint: Any) -> bool:
    """Return whether text of a settings file can become *hint*."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(can_convert(arm) for arm in get_args(hint) if arm is not NoneType)
    if origin is Literal:
        return True
    if origin in _LISTS or hint in _LISTS:
        return all(can_convert(arm) for arm in get_args(hint) if arm is not Ellipsis)
    if origin in _MAPPINGS or hint in _MAPPINGS:
        return True
    return isinstance(hint, type) and issubclass(hint, (*_SCALARS, Enum))


def expected(hint: Any) -> str:
    """Return *hint* in words."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(expected(arm) for arm in get_args(hint) if arm is not NoneType)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(hint))
    if origin in _LISTS or hint in _LISTS:
        return "a list of texts" if get_args(hint)[:1] in ((), (str,)) else "a list"
    if origin in _MAPPINGS or hint in _MAPPINGS:
        return "a table"
    if issubclass(hint, Enum):
        return "one of " + ", ".join(repr(member.value) for member in hint)
    if issubclass(hint, timedelta):
        return f"a duration ({EXPECTED_DURATION})"
    words = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
    return words.get(hint, "a path")


def _convert(value: Any, hint: Any, is_text: bool) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _union(value, hint, is_text)
    if origin is Literal:
        if value in get_args(hint):
            return value
        raise _Mismatch
    if origin in _LISTS or hint in _LISTS:
        return _list(value, hint, is_text)
    if origin in _MAPPINGS or hint in _MAPPINGS:
        return _mapping(value, is_text)
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value if not isinstance(value, float) or hint is not float else _finite(value)
    if issubclass(hint, Enum):
        return _enum(value, hint)
    if issubclass(hint, timedelta):
        return _duration(value)
    if issubclass(hint, Path) and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if is_text and isinstance(value, str):
        return _from_text(value, hint)
    raise _Mismatch


def _union(value: Any, hint: Any, is_text: bool) -> Any:
    if value is None and NoneType in get_args(hint):
        return None
    why = ""
    # Any text fits the arm for text, so try the other arms first.
    arms = (arm for arm in get_args(hint) if arm is not NoneType and can_convert(arm))
    for arm in sorted(arms, key=lambda arm: arm is str):
        try:
            return _convert(value, arm, is_text)
        except _Mismatch as mismatch:
            why = str(mismatch)
    raise _Mismatch(why)


def _list(value: Any, hint: Any, is_text: bool) -> Any:
    if is_text and isinstance(value, str):
        value = [each.strip() for each in value.split(",") if each.strip()]
    # A lone text is a sequence of letters; the user surely meant a list with one element.
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _Mismatch
    arms = [arm for arm in get_args(hint) if arm is not Ellipsis]
    element = arms[0] if arms else str
    converted = [_convert(each, element, is_text) for each in value]
    return converted if (get_origin(hint) or hint) is list else tuple(converted)


def _mapping(value: Any, is_text: bool) -> Any:
    if is_text and isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise _Mismatch("in the environment, a table is a JSON object") from None
    if not isinstance(value, Mapping):
        raise _Mismatch
    return dict(value)


def _enum(value: Any, kind: type[Enum]) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise _Mismatch from None


def _duration(value: Any) -> timedelta:
    try:
        if isinstance(value, str):
            return parse_duration(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return seconds(float(value))
    except ValueError as error:
        raise _Mismatch(str(error)) from None
    raise _Mismatch


def _from_text(text: str, hint: type) -> Any:
    if hint is bool:
        if text.strip().lower() in _YES | _NO:
            return text.strip().lower() in _YES
        raise _Mismatch
    if hint not in (int, float):
        raise _Mismatch
    try:
        return hint(text.strip()) if hint is int else _finite(float(text))
    except ValueError:
        raise _Mismatch from None


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise _Mismatch("it must be finite")
    return number
